// SPDX-License-Identifier: Apache-2.0
#include "config/parse_size.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

struct Suffix {
  std::string_view text;
  int64_t factor;
};

constexpr int64_t kBinary = 1024;
constexpr Suffix kSuffixes[] = {
    {"", 1},
    {"B", 1},
    {"k", 1'000},
    {"m", 1'000'000},
    {"g", 1'000'000'000},
    {"t", 1'000'000'000'000},
    {"kB", 1'000},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"K", kBinary},
    {"M", kBinary* kBinary},
    {"G", kBinary* kBinary* kBinary},
    {"T", kBinary* kBinary* kBinary* kBinary},
    {"Ki", kBinary},
    {"Mi", kBinary* kBinary},
    {"Gi", kBinary* kBinary* kBinary},
    {"Ti", kBinary* kBinary* kBinary* kBinary},
    {"KiB", kBinary},
    {"MiB", kBinary* kBinary},
    {"GiB", kBinary* kBinary* kBinary},
    {"TiB", kBinary* kBinary* kBinary* kBinary},
};

tl::unexpected<Error> not_a_number(std::string_view text) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not a number (write 4096, 32k, 24MiB or 1.5GiB)", text));
}

// Removes the digits at the front of `rest` and returns them.
std::string_view take_digits(std::string_view& rest) {
  size_t n = 0;
  while (n < rest.size() && std::isdigit(static_cast<unsigned char>(rest[n])) != 0) {
    ++n;
  }
  const std::string_view digits = rest.substr(0, n);
  rest.remove_prefix(n);
  return digits;
}

// 128 bits hold every product below: a value stays under 2^63, a factor under 2^41.
__extension__ using Wide = __int128;
constexpr Wide kMax = std::numeric_limits<int64_t>::max();

// The number `digits` times factor; more than kMax if it does not fit.
Wide scaled(std::string_view digits, int64_t factor) {
  Wide value = 0;
  for (const char digit : digits) {
    value = value * 10 + (digit - '0');
    if (value > kMax) {
      return value;
    }
  }
  return value * factor;
}

// The number `0.digits` times factor, rounded down.
Wide scaled_fraction(std::string_view digits, int64_t factor) {
  constexpr size_t kEnough = 18;  // more digits than any factor has
  Wide scale = 1;
  for (size_t i = 0; i < std::min(digits.size(), kEnough); ++i) {
    scale *= 10;
  }
  return scaled(digits.substr(0, kEnough), factor) / scale;
}

// 0 if it is not a suffix.
int64_t factor_of(std::string_view suffix) {
  for (const Suffix& known : kSuffixes) {
    if (known.text == suffix) {
      return known.factor;
    }
  }
  return 0;
}

}  // namespace

Result<int64_t> parse_size(std::string_view text) {
  std::string_view rest = text;
  const std::string_view whole = take_digits(rest);
  const bool has_point = !rest.empty() && rest.front() == '.';
  if (has_point) {
    rest.remove_prefix(1);
  }
  const std::string_view fraction = has_point ? take_digits(rest) : "";
  const int64_t factor = factor_of(rest);
  if (whole.empty() || factor == 0 || (has_point && (fraction.empty() || factor == 1))) {
    return not_a_number(text);
  }
  const Wide value = scaled(whole, factor) + scaled_fraction(fraction, factor);
  if (value > kMax) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is too large", text));
  }
  return static_cast<int64_t>(value);
}

}  // namespace warprow
