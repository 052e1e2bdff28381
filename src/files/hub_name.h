// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/model_files.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A model as it is called on the Hugging Face Hub: org/name[@revision][:QUANT].
struct HubName {
  std::string repo;  // org/name; old models have no org
  std::string revision = "main";
  std::string quant;  // of GGUF files: "Q4_K_M"; empty: none was named
};

// Nothing for what can be no such name. Its parts may become parts of paths.
std::optional<HubName> parse_hub_name(std::string_view text);

// hub/models--org--name
std::string hub_repo_folder(const CachePaths& caches, const HubName& name);

// Whether a .gguf file's name says that it holds that quantisation, in any case of letters: the word
// stands between dots, dashes, slashes or ends ("m-Q4_K_M.gguf" holds Q4_K_M, not Q4_K).
bool has_quant(std::string_view file, std::string_view quant);

struct HubFile {
  std::string name;
  uint64_t size = 0;
  std::string sha256;  // where it is known beforehand, in hex
};

// The files that a model needs, of those in a repository: one .gguf file for a quantisation (Q4_K_M
// where a repository of several names none) or all of its parts, or configuration, tokenizer and safetensors. What
// resolve_model looks for is last, so that a download that broke off is not taken for a model.
// kInvalidArgument: a choice is needed; kNotFound: nothing of use, or a part is missing.
Result<std::vector<HubFile>> choose_hub_files(const std::vector<HubFile>& files,
                                              const HubName& name,
                                              WeightFiles weights);

}  // namespace warprow
