// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <exception>
#include <new>
#include <string>

#include "warprow.h"

namespace warprow {

warprow_status status_of(ErrorCode code);

// The text behind warprow_last_error, one for each thread.
const char* last_error();
// Keeps the text. Returns the status.
warprow_status fail_call(warprow_status status, const std::string& message) noexcept;
warprow_status fail_call(const Error& error) noexcept;

// Runs the body of a function of the C interface, which returns a warprow_status. Exceptions become statuses.
template <typename Body>
warprow_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const StartupError& error) {
    return fail_call({error.code(), error.what()});
  } catch (const std::bad_alloc&) {
    return fail_call(WARPROW_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail_call(WARPROW_INTERNAL, std::string("internal error: ") + error.what());
  } catch (...) {
    return fail_call(WARPROW_INTERNAL, "internal error");
  }
}

}  // namespace warprow
