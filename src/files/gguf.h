// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/gguf_types.h"
#include "files/mapped_file.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace warprow {

struct GgufTensor {
  std::string_view name;  // points into the file
  GgmlType type = GgmlType::kF32;
  int n_dims = 0;                         // 0 (a scalar) to 4
  std::array<int64_t, 4> ne{1, 1, 1, 1};  // innermost (contiguous) first, then 1
  uint64_t offset = 0;                    // from the start of the file
  uint64_t bytes = 0;
};

// A metadata value as stored in the file; GgufFile::get converts it to a C++ value.
struct GgufValue {
  GgufValueType type = GgufValueType::kU8;
  GgufValueType element = GgufValueType::kU8;  // of an array; otherwise equal to type
  uint64_t count = 1;                          // of an array; otherwise 1
  std::span<const std::byte> bytes;            // the elements, little endian
};

// A GGUF container, version 2 or 3, little endian (the format: ggml's docs/gguf.md). Only the header is read, no
// tensor data. Every count, length and offset is checked against the size of the file before it is used, so a
// truncated or inconsistent file is an Error (kCorrupt, kUnsupported) that names the file and the field.
// Owns: the mapping when opened by path; parse() borrows the caller's bytes.
// Thread: const methods from any thread.
// Invariant: every tensor lies within bytes(), aligned to general.alignment and without overlap; names and keys are
// unique. Returned views are valid as long as the mapping (or the caller's bytes), also across moves.
class GgufFile {
 public:
  static Result<GgufFile> open(const std::string& path);
  // `name` is the file's name in messages.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  // Tensors and metadata keys come in the order of the file.
  [[nodiscard]] std::span<const GgufTensor> tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;  // null if absent
  [[nodiscard]] std::span<const std::byte> tensor_bytes(const GgufTensor& tensor) const;

  [[nodiscard]] std::span<const std::string_view> keys() const { return keys_; }
  [[nodiscard]] const GgufValue* find_value(std::string_view key) const;  // null if absent
  [[nodiscard]] bool has(std::string_view key) const { return find_value(key) != nullptr; }

  // The value as a T, one of: bool, int32_t, uint32_t, int64_t, float, std::string_view,
  // std::vector<std::string_view>, std::vector<int64_t>, std::vector<float>. Integers convert
  // between widths where the value fits, any number converts to float, integers and bools to the
  // int64 vector.
  // get: nullopt if the key is absent or its value is not a T.
  template <typename T>
  [[nodiscard]] std::optional<T> get(std::string_view key) const;
  // require: an Error (kCorrupt) in both cases, which says which.
  template <typename T>
  [[nodiscard]] Result<T> require(std::string_view key) const;
  // get_or: the fallback if the key is absent, an Error if its value is not a T.
  template <typename T>
  [[nodiscard]] Result<T> get_or(std::string_view key, T fallback) const;

  // Drops the file's pages of [offset, offset + len) from this process's memory. Does nothing for a parsed span.
  void drop_pages(uint64_t offset, uint64_t len) const;

 private:
  GgufFile() = default;
  friend class GgufParser;

  std::string name_;
  std::optional<MappedFile> mapping_;
  std::span<const std::byte> bytes_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace warprow
