// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/safetensors.h"

#include <span>
#include <string>
#include <vector>

namespace warprow {

// The safetensors files of a Hugging Face directory: model.safetensors, or the shards that
// model.safetensors.index.json names.
// Owns: the open files.
// Thread: const methods from any thread.
// Invariant: tensor names are unique over all entries.
class SafetensorsSet {
 public:
  struct Entry {
    int file;  // index into files()
    const SafetensorsTensor* tensor;
  };

  // kNotFound if the directory holds neither, or a shard is missing.
  static Result<SafetensorsSet> open(const std::string& dir);

  [[nodiscard]] std::span<const SafetensorsFile> files() const { return files_; }
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::vector<Entry> entries_;
};

}  // namespace warprow
