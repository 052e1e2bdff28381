// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own
class App;
}

namespace warprow {

// A flag as --help shows it.
struct Flag {
  std::string name;   // long name without dashes, words joined by '-'
  std::string value;  // the value's placeholder: "N", "TEXT"; empty for a switch
  std::string group;
  std::string help;
  bool common = true;        // shown by the short --help
  std::string short_name{};  // one letter, or empty
  std::string alias{};       // several letters that also stand behind one dash, or empty
};

// The flags and positional arguments of one command. Accepts `--name value`, `--name=value`, `--name_with_underscores`,
// `-alias value`, `--switch`, `--no-switch` and `--switch=false`. A value may start with a dash. CLI11 splits the line. The
// values are parsed here, so that all errors have the same wording.
//
// Owns: the CLI11 parser. Thread: one.
class FlagSet {
 public:
  // usage: the text after "warprow NAME" in the usage line.
  FlagSet(std::string command, std::string summary, std::string usage);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // Calls `read` for each occurrence of the flag, in order. Its error is returned unchanged.
  using ReadValue = std::function<Result<void>(const std::string& text)>;
  void add_value(Flag flag, ReadValue read);
  // A value flag that sets a string. The last occurrence counts.
  void add_text(Flag flag, std::optional<std::string>& target);
  // Also adds --no-NAME. `read` gets "true", "false", or the text behind --NAME=. The last occurrence counts. A switch has
  // no short name.
  void add_switch(Flag flag, ReadValue read);
  // A switch that is on or off.
  void add_switch(Flag flag, std::function<void(bool on)> read);
  // Collects all arguments that belong to no flag. Without this call such arguments are an error.
  void add_positionals(std::vector<std::string>& target);

  // Parses the arguments. kInvalidArgument with the cause.
  Result<void> parse(const std::vector<std::string>& arguments);

  // scope: "" for the common flags, "all", or the name of a group or flag.
  [[nodiscard]] Result<std::string> help(std::string_view scope) const;

 private:
  // The flags with their values, as CLI11 reads them, the switches, and the arguments between them.
  struct Split {
    std::vector<std::string> flags;
    std::vector<std::pair<const Flag*, std::string>> switches;
    std::vector<std::string> positionals;
  };
  [[nodiscard]] Split split_arguments(const std::vector<std::string>& arguments) const;
  // Adds one flag argument to out. Returns whether the next argument is its value.
  bool split_flag(const std::string& argument, Split& out) const;
  [[nodiscard]] const Flag* find(std::string_view long_name) const;
  [[nodiscard]] Error unknown_flag(const std::string& argument) const;

  std::string command_;
  std::string summary_;
  std::string usage_;
  std::vector<std::unique_ptr<Flag>> flags_;
  std::map<const Flag*, ReadValue> switches_;
  std::unique_ptr<CLI::App> app_;
  std::vector<std::string>* positionals_ = nullptr;
  std::optional<Error> value_error_;  // the first that a ReadValue returned
};

// The entry of `known` for which `word` is most likely a typing error, or "".
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

// The scope of -h, --help or --help=SCOPE, if one of them is among the arguments before "--".
std::optional<std::string> help_scope(const std::vector<std::string>& arguments);

}  // namespace warprow
