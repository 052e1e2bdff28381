// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// Reads one JSON object that is a call, character by character: {"name": "f", "arguments": {...}}, with
// `parameters` for arguments where a model was taught so; `null` for them means none. Other fields are
// passed over; a second name, or second arguments, break it. Gives the arguments out as they come, in the
// model's own spelling: their brackets match, but whether they are JSON shows at the end alone.
class CallReader {
 public:
  CallReader() = default;
  // For an object that is the arguments of a function already known.
  explicit CallReader(std::string name) : name_(std::move(name)), only_arguments_(true) {}

  enum class Status { kMore, kDone, kBroken };
  // After kDone and kBroken nothing more is fed.
  Status feed(char c);

  // The name, once it is known.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Arguments that were not taken yet; none before the name is known. "{}" at the end of a call
  // without any.
  std::string take_arguments();
  // Everything fed so far, for a text that turns out to be no call.
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
  std::string value_;       // that is not the arguments' object
  bool has_begun_ = false;  // the arguments' object, and has not ended
  std::string open_;        // brackets that wait within the value, each as the one that closes it
  bool in_text_ = false;
  bool escaped_ = false;
};

}  // namespace warprow
