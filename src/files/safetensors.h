// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/mapped_file.h"
#include "files/safetensors_dtype.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace warprow {

struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;  // outermost first, row-major; empty for a scalar
  uint64_t offset = 0;         // from the start of the file
  uint64_t bytes = 0;
};

// One safetensors file: an 8-byte little-endian length, a JSON header, the data (the format:
// huggingface/safetensors). Only the header is read. As in the reference reader the tensors must tile the data
// without holes or overlaps, so a truncated or inconsistent file is an Error (kCorrupt, kUnsupported) that names
// the file and the tensor.
// Owns: the mapping when opened by path; parse() borrows the caller's bytes.
// Thread: const methods from any thread.
// Invariant: every tensor lies within bytes() and has exactly the bytes of its shape; names are
// unique.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  // `name` is the file's name in messages.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  // By offset.
  [[nodiscard]] std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  [[nodiscard]] const SafetensorsTensor* find(std::string_view name) const;  // null if absent
  [[nodiscard]] std::span<const std::byte> tensor_bytes(const SafetensorsTensor& tensor) const;
  // Drops the file's pages of [offset, offset + len) from this process's memory. Does nothing for a parsed span.
  void drop_pages(uint64_t offset, uint64_t len) const;

 private:
  SafetensorsFile() = default;
  friend class SafetensorsParser;

  std::string name_;
  std::optional<MappedFile> mapping_;
  std::span<const std::byte> bytes_;
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // keys point into tensors_
};

}  // namespace warprow
