// SPDX-License-Identifier: Apache-2.0
#include "capi/status.h"

namespace warprow {
namespace {

std::string& error_text() {
  thread_local std::string text;
  return text;
}

}  // namespace

warprow_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return WARPROW_INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return WARPROW_NOT_FOUND;
    case ErrorCode::kUnsupported:
      return WARPROW_UNSUPPORTED;
    case ErrorCode::kCorrupt:
      return WARPROW_CORRUPT;
    case ErrorCode::kOutOfMemory:
      return WARPROW_OUT_OF_MEMORY;
    case ErrorCode::kBusy:
      return WARPROW_BUSY;
    case ErrorCode::kInternal:
      break;
  }
  return WARPROW_INTERNAL;
}

const char* last_error() { return error_text().c_str(); }

warprow_status fail_call(warprow_status status, const std::string& message) noexcept {
  try {
    error_text() = message;
  } catch (...) {  // no memory for the text
    error_text().clear();
  }
  return status;
}

warprow_status fail_call(const Error& error) noexcept {
  return fail_call(status_of(error.code), error.message);
}

}  // namespace warprow
