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

// A model's name on the Hugging Face Hub: org/name[@revision][:QUANT].
struct HubName {
  std::string repo;  // org/name; old models have no org
  std::string revision = "main";
  std::string quant;  // of GGUF files: "Q4_K_M"; empty: none given
};

// nullopt for text that cannot be such a name. Its parts are safe to use as parts of paths.
std::optional<HubName> parse_hub_name(std::string_view text);

// hub/models--org--name
std::string hub_repo_folder(const CachePaths& caches, const HubName& name);

// Whether a .gguf file's name contains this quantisation, in upper or lower case, as a word between dots, dashes,
// slashes or ends ("m-Q4_K_M.gguf" holds Q4_K_M, not Q4_K).
bool has_quant(std::string_view file, std::string_view quant);

struct HubFile {
  std::string name;
  uint64_t size = 0;
  std::string sha256;  // where it is known beforehand, in hex
};

// The files of a repository that a model needs: one .gguf file of a quantisation, or all of its parts (Q4_K_M if
// the repository has several quantisations and the name gives none), or configuration, tokenizer and safetensors.
// The file that resolve_model looks for is last, so that an interrupted download is not taken for a model.
// kInvalidArgument: the name must choose; kNotFound: no usable file, or a part is missing.
Result<std::vector<HubFile>> choose_hub_files(const std::vector<HubFile>& files,
                                              const HubName& name,
                                              WeightFiles weights);

}  // namespace warprow
