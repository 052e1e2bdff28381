// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/flag_set.h"

#include "cli/flags/help_text.h"
#include "config/fields.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace warprow {
namespace {

bool is_long(std::string_view argument) {
  return argument.size() > 2 && argument.substr(0, 2) == "--";
}

std::string with_dashes(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

// Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

std::string cli11_names(const Flag& flag) {
  return flag.short_name.empty() ? "--" + flag.name : "-" + flag.short_name + ",--" + flag.name;
}

}  // namespace

FlagSet::FlagSet(std::string command, std::string summary, std::string usage)
    : command_(std::move(command)),
      summary_(std::move(summary)),
      usage_(std::move(usage)),
      app_(std::make_unique<CLI::App>()) {
  app_->set_help_flag();
  app_->allow_extras();
}

FlagSet::~FlagSet() = default;

void FlagSet::add_value(Flag flag, ReadValue read) {
  const auto store = [this, read = std::move(read)](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      if (Result<void> done = read(text); !done && !value_error_) {
        value_error_ = done.error();
      }
    }
  };
  app_->add_option_function<std::vector<std::string>>(cli11_names(flag), store)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  flags_.push_back(std::make_unique<Flag>(std::move(flag)));
}

void FlagSet::add_text(Flag flag, std::optional<std::string>& target) {
  add_value(std::move(flag), [&target](const std::string& text) -> Result<void> {
    target = text;
    return {};
  });
}

// CLI11's own flags are not used: they throw for a value that is not a number.
void FlagSet::add_switch(Flag flag, ReadValue read) {
  flags_.push_back(std::make_unique<Flag>(std::move(flag)));
  switches_[flags_.back().get()] = std::move(read);
}

void FlagSet::add_switch(Flag flag, std::function<void(bool on)> read) {
  const std::string name = flag.name;
  add_switch(std::move(flag),
             ReadValue([name, read = std::move(read)](const std::string& text) -> Result<void> {
               const Result<bool> on = parse_switch(text);
               if (!on) {
                 return fail(on.error().code, fmt::format("--{}: {}", name, on.error().message));
               }
               read(*on);
               return {};
             }));
}

void FlagSet::add_positionals(std::vector<std::string>& target) { positionals_ = &target; }

Result<void> FlagSet::parse(const std::vector<std::string>& arguments) {
  value_error_.reset();
  Split split = split_arguments(arguments);
  std::reverse(split.flags.begin(), split.flags.end());  // the order that CLI11 takes
  try {
    app_->parse(std::move(split.flags));
  } catch (const CLI::ArgumentMismatch&) {
    // Only the last argument can be a flag without its value.
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: needs a value", arguments.back()));
  } catch (const CLI::ParseError& error) {
    return fail(ErrorCode::kInvalidArgument, error.what());
  }
  if (const std::vector<std::string> rest = app_->remaining(); !rest.empty()) {
    return tl::unexpected(unknown_flag(rest.front()));
  }
  for (const auto& [flag, text] : split.switches) {
    if (Result<void> done = switches_.at(flag)(text); !done && !value_error_) {
      value_error_ = done.error();
    }
  }
  if (value_error_) {
    return tl::unexpected(*value_error_);
  }
  if (positionals_ != nullptr) {
    *positionals_ = std::move(split.positionals);
  } else if (!split.positionals.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("unexpected argument '{}'", split.positionals.front()));
  }
  return {};
}

const Flag* FlagSet::find(std::string_view long_name) const {
  for (const auto& flag : flags_) {
    if (flag->name == long_name) {
      return flag.get();
    }
  }
  return nullptr;
}

// The argument after a value flag is always its value, even if it looks like a flag.
FlagSet::Split FlagSet::split_arguments(const std::vector<std::string>& arguments) const {
  Split out;
  bool is_value = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (is_value) {
      out.flags.push_back(argument);
      is_value = false;
    } else if (argument == "--") {
      out.positionals.insert(out.positionals.end(),
                             arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                             arguments.end());
      break;
    } else if (argument.size() < 2 || argument[0] != '-') {
      out.positionals.push_back(argument);
    } else {
      is_value = split_flag(argument, out);
    }
  }
  return out;
}

// Turns `--a_b=c` into `--a-b` `c`, a form that CLI11 reads correctly even if c is empty, and an alias into its flag.
bool FlagSet::split_flag(const std::string& argument, Split& out) const {
  if (!is_long(argument)) {
    const size_t name_end = std::min(argument.find('='), argument.size());
    const std::string_view letters = std::string_view(argument).substr(1, name_end - 1);
    const auto known = std::ranges::find_if(
        flags_, [&](const auto& flag) { return !flag->alias.empty() && flag->alias == letters; });
    if (known != flags_.end()) {
      return split_flag("--" + (*known)->name + argument.substr(name_end), out);
    }
    out.flags.push_back(argument);
    return argument.size() == 2 && std::any_of(flags_.begin(), flags_.end(), [&](const auto& flag) {
             return flag->short_name == argument.substr(1) && !flag->value.empty();
           });
  }
  const size_t equals = std::min(argument.find('='), argument.size());
  const std::string name = with_dashes(std::string_view(argument).substr(2, equals - 2));
  const Flag* flag = find(name);
  if (flag != nullptr && flag->value.empty()) {
    out.switches.emplace_back(flag,
                              equals < argument.size() ? argument.substr(equals + 1) : "true");
    return false;
  }
  if (flag == nullptr && name.starts_with("no-")) {
    const Flag* off = find(std::string_view(name).substr(3));
    if (off != nullptr && off->value.empty() && equals == argument.size()) {
      out.switches.emplace_back(off, "false");
      return false;
    }
  }
  const bool takes_value = flag != nullptr && !flag->value.empty();
  const bool has_value = equals < argument.size();
  if (takes_value && has_value) {
    out.flags.push_back("--" + name);
    out.flags.push_back(argument.substr(equals + 1));
  } else {
    out.flags.push_back("--" + name + argument.substr(equals));
  }
  return takes_value && !has_value;
}

Error FlagSet::unknown_flag(const std::string& argument) const {
  std::vector<std::string> known;
  known.reserve(flags_.size());
  for (const auto& flag : flags_) {
    known.push_back("--" + flag->name);
  }
  const std::string name = argument.substr(0, argument.find('='));
  std::string near = nearest_word(name, known);
  if (near.empty() && is_long(name)) {  // the flag that ends with these words: --url, --base-url
    const auto found = std::find_if(known.begin(), known.end(), [&](const std::string& flag) {
      return flag.ends_with(name.substr(1));
    });
    near = found == known.end() ? "" : *found;
  }
  const std::string hint = near.empty() ? fmt::format("see warprow {} --help=all", command_)
                                        : fmt::format("did you mean {}?", near);
  return {ErrorCode::kInvalidArgument, fmt::format("unknown flag {}; {}", name, hint)};
}

Result<std::string> FlagSet::help(std::string_view scope) const {
  const bool short_form = scope.empty();
  const std::string wanted =
      with_dashes(scope.substr(std::min(scope.find_first_not_of('-'), scope.size())));
  std::vector<const Flag*> shown;
  for (const auto& flag : flags_) {
    if (short_form ? flag->common
                   : wanted == "all" || wanted == flag->name || same_heading(wanted, flag->group)) {
      shown.push_back(flag.get());
    }
  }
  if (shown.empty() && !short_form && wanted != "all") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--help={}: no such flag or group", scope));
  }
  std::string out;
  if (short_form || wanted == "all") {
    out = fmt::format(
        "warprow {}: {}\n\nusage: warprow {} {}\n", command_, summary_, command_, usage_);
  }
  out += flags_help(shown);
  if (short_form && shown.size() < flags_.size()) {
    out += fmt::format(
        "\n{} more flags: warprow {} --help=all\n", flags_.size() - shown.size(), command_);
  }
  return out;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 4) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::optional<std::string> help_scope(const std::vector<std::string>& arguments) {
  constexpr std::string_view kWithScope = "--help=";
  for (const std::string& argument : arguments) {
    if (argument == "--") {
      break;
    }
    if (argument == "-h" || argument == "--help") {
      return "";
    }
    if (argument.rfind(kWithScope, 0) == 0) {
      return argument.substr(kWithScope.size());
    }
  }
  return std::nullopt;
}

}  // namespace warprow
