// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace warprow {
namespace {

bool& throws_on_this_thread() {
  thread_local bool value = false;
  return value;
}

}  // namespace

void check_failed(const char* file, int line, const char* expr, const std::string& detail) {
  std::string message = fmt::format(
      "check failed at {}:{}: {}{}{}", file, line, expr, detail.empty() ? "" : ": ", detail);
  if (throws_on_this_thread()) {
    throw CheckFailure{std::move(message)};
  }
  std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(stderr);
  std::abort();
}

ScopedCheckThrows::ScopedCheckThrows() : previous_(throws_on_this_thread()) {
  throws_on_this_thread() = true;
}
ScopedCheckThrows::~ScopedCheckThrows() { throws_on_this_thread() = previous_; }

}  // namespace warprow
