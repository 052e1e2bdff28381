// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/help_text.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr size_t kTextColumn = 34;
constexpr size_t kWidth = 100;

// "-p, --prompt TEXT", "-tp, --tensor-parallel-size N", "    --[no-]async-scheduling".
std::string flag_label(const Flag& flag) {
  const std::string& letters = flag.short_name.empty() ? flag.alias : flag.short_name;
  const std::string letter = letters.empty() ? "    " : fmt::format("-{}, ", letters);
  return flag.value.empty() ? fmt::format("{}--[no-]{}", letter, flag.name)
                            : fmt::format("{}--{} {}", letter, flag.name, flag.value);
}

}  // namespace

std::string help_row(std::string_view name, std::string_view text) {
  std::string out = fmt::format("  {:<{}}", name, kTextColumn - 2);
  if (name.size() + 3 > kTextColumn) {
    out = fmt::format("  {}\n{:{}}", name, "", kTextColumn);
  }
  while (text.size() > kWidth - kTextColumn) {
    size_t cut = text.rfind(' ', kWidth - kTextColumn);
    cut = cut == std::string_view::npos ? kWidth - kTextColumn : cut;
    out += fmt::format("{}\n{:{}}", text.substr(0, cut), "", kTextColumn);
    text.remove_prefix(std::min(cut + 1, text.size()));
  }
  return out + std::string(text) + "\n";
}

std::string flags_help(const std::vector<const Flag*>& flags) {
  std::vector<std::string_view> groups;
  for (const Flag* flag : flags) {
    if (std::find(groups.begin(), groups.end(), flag->group) == groups.end()) {
      groups.push_back(flag->group);
    }
  }
  std::string out;
  for (const std::string_view group : groups) {
    out += fmt::format("\n{}\n", group);
    for (const Flag* flag : flags) {
      if (flag->group == group) {
        out += help_row(flag_label(*flag), flag->help);
      }
    }
  }
  return out;
}

bool same_heading(std::string_view word, std::string_view heading) {
  const auto same = [](char a, char b) {
    return (a == '-' && b == ' ') || std::tolower(static_cast<unsigned char>(a)) ==
                                         std::tolower(static_cast<unsigned char>(b));
  };
  return std::equal(word.begin(), word.end(), heading.begin(), heading.end(), same);
}

}  // namespace warprow
