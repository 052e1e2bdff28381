// SPDX-License-Identifier: Apache-2.0
#include "config/parse_size.h"

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

// The digits at the front of rest, which they are taken from.
std::string_view take_digits(std::string_view& rest) {
  size_t n = 0;
  while (n < rest.size() && std::isdigit(static_cast<unsigned char>(rest[n])) != 0) {
    ++n;
  }
  const std::string_view digits = rest.substr(0, n);
  rest.remove_prefix(n);
  return digits;
}

}  // namespace

Result<int64_t> parse_size(std::string_view text) {
  std::string_view rest = text;
  const std::string_view whole = take_digits(rest);
  std::string_view fraction;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    if (fraction.empty()) {
      return not_a_number(text);
    }
  }
  if (whole.empty()) {
    return not_a_number(text);
  }
  const Suffix* suffix = nullptr;
  for (const Suffix& candidate : kSuffixes) {
    if (candidate.text == rest) {
      suffix = &candidate;
    }
  }
  if (suffix == nullptr || (!fraction.empty() && suffix->factor == 1)) {
    return not_a_number(text);
  }

  // 128 bits hold every product below: the value stays under 2^63, the factor under 2^41.
  __extension__ using Wide = __int128;
  constexpr Wide kMax = std::numeric_limits<int64_t>::max();
  Wide value = 0;
  for (const char digit : whole) {
    value = value * 10 + (digit - '0');
    if (value > kMax) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is too large", text));
    }
  }
  value *= suffix->factor;
  Wide scale = 1;
  Wide part = 0;
  for (const char digit : fraction.substr(0, 18)) {
    part = part * 10 + (digit - '0');
    scale *= 10;
  }
  value += part * suffix->factor / scale;
  if (value > kMax) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is too large", text));
  }
  return static_cast<int64_t>(value);
}

}  // namespace warprow
