// SPDX-License-Identifier: Apache-2.0
#include "server/chat/call_reader.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr std::string_view kNameKey = "\"name\"";

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

bool names_arguments(std::string_view key) {
  return key == "\"arguments\"" || key == "\"parameters\"";
}

}  // namespace

bool CallReader::is_arguments() const { return only_arguments_ || names_arguments(key_); }

// What was given out already cannot change.
bool CallReader::is_repeated() const {
  return (is_arguments() && has_arguments_) || (key_ == kNameKey && !name_.empty());
}

CallReader::Status CallReader::feed(char c) {
  text_ += c;
  if (at_ != At::kKey && at_ != At::kValue && is_space(c)) {
    return Status::kMore;
  }
  switch (at_) {
    case At::kStart:
      if (c != '{') {
        return Status::kBroken;
      }
      if (only_arguments_) {
        at_ = At::kValue;
        return feed_value(c);
      }
      at_ = At::kKey;
      return Status::kMore;
    case At::kKey:
      return feed_key(c);
    case At::kColon:
      at_ = At::kValue;
      value_.clear();
      return c == ':' && !is_repeated() ? Status::kMore : Status::kBroken;
    case At::kValue:
      return feed_value(c);
    case At::kAfterValue:
      if (c == ',') {
        key_.clear();
        at_ = At::kKey;
        return Status::kMore;
      }
      done_ = c == '}' && !name_.empty();
      return done_ ? Status::kDone : Status::kBroken;
  }
  return Status::kBroken;
}

CallReader::Status CallReader::feed_key(char c) {
  if (key_.empty() && is_space(c)) {
    return Status::kMore;
  }
  if (key_.empty() && c == '}') {
    done_ = !name_.empty();
    return done_ ? Status::kDone : Status::kBroken;
  }
  if (key_.empty() && c != '"') {
    return Status::kBroken;
  }
  key_ += c;
  at_ = key_.size() > 1 && c == '"' ? At::kColon : At::kKey;
  return Status::kMore;
}

CallReader::Status CallReader::feed_value(char c) {
  if (value_.empty() && !has_begun_ && is_space(c)) {
    return Status::kMore;
  }
  if (!in_text_ && open_.empty() && (c == ',' || c == '}')) {  // ends a number or a literal
    if (value_.empty() || !end_value()) {
      return Status::kBroken;
    }
    text_.pop_back();
    return feed(c);
  }
  if (!add_to_value(c)) {
    return Status::kBroken;
  }
  const bool closes = c == '"' || c == '}' || c == ']';
  if (!open_.empty() || in_text_ || !closes) {
    return Status::kMore;
  }
  if (only_arguments_) {
    done_ = true;
    return Status::kDone;
  }
  return end_value() ? Status::kMore : Status::kBroken;
}

// False if the character is not valid at this place.
bool CallReader::add_to_value(char c) {
  has_begun_ = has_begun_ || (is_arguments() && value_.empty() && c == '{');
  if (has_begun_) {
    arguments_ += c;
    has_arguments_ = true;
  } else {
    value_ += c;
  }
  if (in_text_) {
    in_text_ = escaped_ || c != '"';
    escaped_ = !escaped_ && c == '\\';
  } else if (c == '"') {
    in_text_ = true;
  } else if (c == '{' || c == '[') {
    open_ += c == '{' ? '}' : ']';
  } else if (c == '}' || c == ']') {
    if (open_.empty() || open_.back() != c) {
      return false;
    }
    open_.pop_back();
  }
  return true;
}

bool CallReader::end_value() {
  at_ = At::kAfterValue;
  if (key_ == kNameKey) {
    const nlohmann::json name = nlohmann::json::parse(value_, nullptr, false);
    if (!name.is_string()) {
      return false;
    }
    name_ = name.get<std::string>();
  }
  const bool is_object = std::exchange(has_begun_, false);
  return !is_arguments() || is_object ||
         nlohmann::json::parse(value_, nullptr, /*allow_exceptions=*/false).is_null();
}

std::string CallReader::take_arguments() {
  if (name_.empty()) {
    return "";
  }
  if (done_ && !std::exchange(has_arguments_, true)) {
    return "{}";
  }
  return std::exchange(arguments_, "");
}

}  // namespace warprow
