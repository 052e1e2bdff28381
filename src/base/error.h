// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace warprow {

// The kind of an Error; the command line maps it to an exit code, the server to an HTTP status.
enum class ErrorCode {
  kInvalidArgument,  // the client's value is out of range or of the wrong type
  kNotFound,         // a model, file or name that does not exist
  kUnsupported,      // valid, but this build or engine cannot do it
  kCorrupt,          // a file that contradicts itself or ends early
  kOutOfMemory,      // the plan does not fit
  kBusy,             // valid, but there is no capacity for it now
  kInternal,         // a bug of ours
};

// A client's mistake, or a reason to refuse: one readable line that names the field, the value and the limit.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

// A failure of the environment at start-up (missing file, too little memory). Thrown during start-up only, caught
// in main.
class StartupError : public std::runtime_error {
 public:
  explicit StartupError(const Error& error)
      : std::runtime_error(error.message), code_(error.code) {}
  StartupError(ErrorCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// For start-up code that cannot continue without the value: returns it or throws StartupError.
template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) {
    throw StartupError(std::move(result).error());
  }
  return std::move(result).value();
}

inline void value_or_throw(Result<void> result) {
  if (!result) {
    throw StartupError(std::move(result).error());
  }
}

}  // namespace warprow
