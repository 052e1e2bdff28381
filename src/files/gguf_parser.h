// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/gguf.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace warprow {

// Fills a GgufFile from its bytes: header, metadata, tensor table, in the order of the file.
// Internal to GgufFile.
// Invariant: at_ <= size of the file; nothing is read or allocated beyond what the rest of the file can hold.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file) {}
  Result<void> run();

 private:
  Result<void> read_header();
  Result<void> read_key_value();
  Result<void> read_value(std::string_view key, GgufValue& value);
  Result<void> read_array(std::string_view key, GgufValue& value);
  Result<void> read_tensor_info();
  Result<void> read_dims(GgufTensor& tensor);
  Result<void> place_tensors();
  Result<void> check_apart() const;

  [[nodiscard]] uint64_t remaining() const { return file_.bytes_.size() - at_; }
  // Returns false and reads nothing if the file ends before.
  template <typename T>
  bool read(T& value);
  bool read_string(std::string_view& value);
  bool take(uint64_t len, std::span<const std::byte>& bytes);

  template <typename... Args>
  [[nodiscard]] tl::unexpected<Error> corrupt(const char* format, const Args&... args) const;
  [[nodiscard]] tl::unexpected<Error> ends_in(std::string_view field) const;

  GgufFile& file_;
  uint64_t at_ = 0;  // bytes consumed
  uint64_t num_tensors_ = 0;
  uint64_t num_values_ = 0;
};

}  // namespace warprow
