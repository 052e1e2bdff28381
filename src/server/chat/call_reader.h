// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// Reads one tool call, a JSON object, character by character: {"name": "f", "arguments": {...}}. Some models write
// `parameters` for `arguments`. `null` means no arguments. Other fields are skipped. A second name
// or second arguments break the call. The arguments are available as
// they arrive, in the model's own spelling. Their brackets match, but only the end of the call shows whether they are
// valid JSON.
class CallReader {
 public:
  CallReader() = default;
  // For an object that holds only the arguments, of the function `name`.
  explicit CallReader(std::string name) : name_(std::move(name)), only_arguments_(true) {}

  enum class Status { kMore, kDone, kBroken };
  // Must not be called after kDone or kBroken.
  Status feed(char c);

  // The name, once it is known.
  [[nodiscard]] const std::string& name() const { return name_; }
  // The arguments since the last take; empty until the name is known. "{}" at the end of a call without arguments.
  std::string take_arguments();
  // All characters fed so far, for a text that turns out not to be a call.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  enum class At { kStart, kKey, kColon, kValue, kAfterValue };

  Status feed_key(char c);
  Status feed_value(char c);
  bool add_to_value(char c);
  bool end_value();
  [[nodiscard]] bool is_arguments() const;
  [[nodiscard]] bool is_repeated() const;  // the key

  std::string text_;
  std::string name_;
  std::string arguments_;  // not taken yet
  bool only_arguments_ = false;
  bool has_arguments_ = false;
  bool done_ = false;

  At at_ = At::kStart;
  std::string key_;         // with its quotes
  std::string value_;       // a value other than the arguments' object
  bool has_begun_ = false;  // the reader is inside the arguments' object
  std::string open_;        // the closing bracket of each bracket that is open within the value
  bool in_text_ = false;
  bool escaped_ = false;
};

}  // namespace warprow
