// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/gguf.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// One file of a model that llama-gguf-split has split: STEM-00002-of-00003.gguf.
struct GgufPart {
  std::string stem;  // with the folders before it, if any
  int number = 1;    // from 1
  int count = 1;     // up to 99999
};

// nullopt for a name of another form.
std::optional<GgufPart> parse_gguf_part(std::string_view file);
std::string gguf_part_name(const GgufPart& part, int number);
// Whether the file is a later part. The first part represents the whole set.
bool is_later_gguf_part(std::string_view file);

// The GGUF file or files of a model. The first holds all of the metadata, each of them tensors of its own.
// Owns: the open files.
// Thread: const methods from any thread.
// Invariant: tensor names are unique over all files, of which there is at least one.
class GgufSet {
 public:
  // path: of the only file, or of the first part; the other parts lie beside it. kNotFound if one is missing,
  // kInvalidArgument for a later part, kCorrupt if the parts do not belong together.
  static Result<GgufSet> open(const std::string& path);

  [[nodiscard]] std::span<const GgufFile> files() const { return files_; }

 private:
  Result<void> add_parts(int64_t count);
  Result<void> check_parts() const;

  std::vector<GgufFile> files_;
};

}  // namespace warprow
