// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace warprow {

class GgufFile;

// The tokenizer in a GGUF file's metadata (keys tokenizer.ggml.*), unchanged.
// Owns: the arrays; the strings point into the file.
struct GgufVocab {
  std::string_view model;                // gpt2 | llama | others, which Tokenizer refuses
  std::string_view pre;                  // pre-tokenizer; empty in old files
  std::vector<std::string_view> tokens;  // by id
  std::vector<std::string_view> merges;  // "left right", best first
  std::vector<float> scores;             // empty, or by id
  // Empty, or by id: 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte.
  std::vector<int32_t> types;
  std::optional<TokenId> bos, eos, unk, pad;
  std::vector<TokenId> end_of_turn;  // eot and eom, if named
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

// kUnsupported if the file has no tokenizer, kCorrupt if a key contradicts another or has the wrong type.
Result<GgufVocab> read_gguf_vocab(const GgufFile& file);

}  // namespace warprow
