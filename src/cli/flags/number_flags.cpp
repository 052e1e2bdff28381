// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/number_flags.h"

#include "config/parse_size.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

namespace warprow {

Result<int64_t> parse_count(const char* name, const std::string& text) {
  const Result<int64_t> value = parse_size(text);
  if (!value || *value < 0 || *value > 1'000'000) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--{}: '{}' is not a number from 0 to 1000000", name, text));
  }
  return *value;
}

void add_count_flag(FlagSet& flags, Flag flag, int64_t& target) {
  flag.value = "N";
  flag.help += fmt::format(" [{}]", target);
  const auto read = [name = flag.name, &target](const std::string& text) -> Result<void> {
    return parse_count(name.c_str(), text).map([&target](int64_t value) { target = value; });
  };
  flags.add_value(std::move(flag), read);
}

void add_number_flag(FlagSet& flags, Flag flag, double& target) {
  flag.value = "X";
  flag.help += fmt::format(" [{}]", target);
  const auto read = [name = flag.name, &target](const std::string& text) -> Result<void> {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= 0)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--{}: '{}' is not a number of at least 0", name, text));
    }
    target = value;
    return {};
  };
  flags.add_value(std::move(flag), read);
}

}  // namespace warprow
