// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// fmt 9 assumes that nvcc has no constexpr functions and then calls them in constants.
#if defined(__NVCC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR 1
#endif
#include <fmt/format.h>

namespace warprow {

// Prints the message with its location and aborts: this is a bug of ours, and execution cannot safely continue.
[[noreturn]] void check_failed(const char* file,
                               int line,
                               const char* expr,
                               const std::string& detail);

// Replaces abort() by a throw of CheckFailure within its scope and thread, so that a test can show that a check
// detects misuse. Not for production code.
struct CheckFailure {
  std::string message;
};
class ScopedCheckThrows {
 public:
  ScopedCheckThrows();
  ~ScopedCheckThrows();
  ScopedCheckThrows(const ScopedCheckThrows&) = delete;
  ScopedCheckThrows& operator=(const ScopedCheckThrows&) = delete;

 private:
  bool previous_;
};

}  // namespace warprow

#define WR_CHECK(cond, ...)                                                              \
  do {                                                                                   \
    if (!(cond)) [[unlikely]] {                                                          \
      ::warprow::check_failed(__FILE__, __LINE__, #cond, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                    \
  } while (false)

// The comparing forms print both operands; they must be integers.
#define WR_CHECK_OP_(op, a, b)                                                             \
  do {                                                                                     \
    const auto wr_a_ = static_cast<long long>(a);                                          \
    const auto wr_b_ = static_cast<long long>(b);                                          \
    if (!(wr_a_ op wr_b_)) [[unlikely]] {                                                  \
      ::warprow::check_failed(                                                             \
          __FILE__, __LINE__, #a " " #op " " #b, ::fmt::format("{} vs {}", wr_a_, wr_b_)); \
    }                                                                                      \
  } while (false)
#define WR_CHECK_EQ(a, b) WR_CHECK_OP_(==, a, b)
#define WR_CHECK_LE(a, b) WR_CHECK_OP_(<=, a, b)
#define WR_CHECK_LT(a, b) WR_CHECK_OP_(<, a, b)
#define WR_CHECK_GE(a, b) WR_CHECK_OP_(>=, a, b)
#define WR_CHECK_GT(a, b) WR_CHECK_OP_(>, a, b)

// For hot loops: compiled out in release builds.
#ifdef NDEBUG
#define WR_DCHECK(cond, ...) \
  do {                       \
  } while (false)
#else
#define WR_DCHECK(cond, ...) WR_CHECK(cond, __VA_ARGS__)
#endif
