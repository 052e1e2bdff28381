// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

#include "textkit.h"

namespace warprow {

// The result of a call to the text library's C ABI, freed at the end of the scope.
class TextkitOwned {
 public:
  TextkitOwned() = default;
  ~TextkitOwned() { wr_textkit_free(raw_); }
  TextkitOwned(const TextkitOwned&) = delete;
  TextkitOwned& operator=(const TextkitOwned&) = delete;

  wr_owned* out() { return &raw_; }
  [[nodiscard]] std::string_view text() const {
    return {static_cast<const char*>(raw_.data), raw_.bytes};
  }
  [[nodiscard]] std::string str() const { return std::string(text()); }
  [[nodiscard]] const wr_owned& raw() const { return raw_; }

 private:
  wr_owned raw_{nullptr, 0, 0};
};

inline wr_text to_textkit(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view from_textkit(wr_text t) { return {t.data, t.size}; }

// The error of a call that returned `failed`. `invalid`: the code if the input is at fault.
inline ErrorCode textkit_error(int failed, ErrorCode invalid = ErrorCode::kInvalidArgument) {
  switch (failed) {
    case WR_BUSY:
      return ErrorCode::kBusy;
    case WR_PANIC:
      return ErrorCode::kInternal;
    default:
      return invalid;
  }
}

}  // namespace warprow
