// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own
class App;
}

namespace warprow {

// A flag as --help shows it.
struct Flag {
  std::string name;   // long name without dashes, words joined by '-'
  std::string value;  // what stands for the value: "N", "TEXT"; empty for a switch
  std::string group;
  std::string help;
  bool common = true;        // shown by the short --help
  std::string short_name{};  // one letter, or empty
};

// The flags and positional arguments of one command. Accepts `--name value`, `--name=value`,
// `--name_with_underscores`,
// `--switch` and `--no-switch`; a value may start with a dash. CLI11 splits the line; the meaning
// of the texts is ours, so that every wrong value is reported in the same words.
//
// Owns: the CLI11 parser. Thread: one.
class FlagSet {
 public:
  // usage: what follows "warprow NAME" in the usage line.
  FlagSet(std::string command, std::string summary, std::string usage);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // `read` is called for each time the flag is given, in that order. Its error stands as it is.
  using ReadValue = std::function<Result<void>(const std::string& text)>;
  void add_value(Flag flag, ReadValue read);
  // A value flag that fills a string; the last one counts.
  void add_text(Flag flag, std::optional<std::string>& target);
  // Also adds --no-NAME; the last one given counts.
  void add_switch(Flag flag, std::function<void(bool on)> read);
  // Takes all arguments that belong to no flag; without this call there may be none.
  void add_positionals(std::vector<std::string>& target);

  // Reads the arguments, or kInvalidArgument with what is wrong.
  Result<void> parse(const std::vector<std::string>& arguments);

  // scope: "" for the common flags, "all", or the name of a group or flag.
  [[nodiscard]] Result<std::string> help(std::string_view scope) const;

 private:
  // Flags with their values, as CLI11 reads them, and what stands between them.
  struct Split {
    std::vector<std::string> flags;
    std::vector<std::string> positionals;
  };
  [[nodiscard]] Split split_arguments(const std::vector<std::string>& arguments) const;
  // Adds one flag argument to out; whether its value is still to come.
  bool split_flag(const std::string& argument, std::vector<std::string>& out) const;
  [[nodiscard]] const Flag* find(std::string_view long_name) const;
  [[nodiscard]] Error unknown_flag(const std::string& argument) const;

  std::string command_;
  std::string summary_;
  std::string usage_;
  std::vector<std::unique_ptr<Flag>> flags_;
  std::unique_ptr<CLI::App> app_;
  std::vector<std::string>* positionals_ = nullptr;
  std::optional<Error> value_error_;  // the first that a ReadValue returned
};

// The word of `known` that `word` most likely is a slip of, or "".
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

// The scope that -h, --help or --help=SCOPE asks for, if one of them is among the arguments before
// "--".
std::optional<std::string> help_scope(const std::vector<std::string>& arguments);

}  // namespace warprow
