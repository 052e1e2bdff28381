// SPDX-License-Identifier: Apache-2.0
#include "server/chat/python_call.h"

#include "server/chat/text_scan.h"
#include "server/chat/written_value.h"

#include <cctype>
#include <charconv>
#include <utility>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr int kMaxCallDepth = 64;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Reads literals and writes JSON. At the end of the text it fails with `ended`, since more text might complete it.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] size_t at() const { return at_; }

  void skip_spaces() { at_ += first_visible(text_.substr(at_)); }

  // The next character; 0 at the end of the text.
  char peek() {
    ended_ = ended_ || at_ >= text_.size();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || ended_) {
      return false;
    }
    ++at_;
    return true;
  }
  // Letters, digits and '_'.
  std::string_view take_word() {
    const size_t begin = at_;
    while (is_word(peek())) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  bool read_value(std::string& out, int depth) {
    if (depth > kMaxCallDepth) {
      return false;
    }
    skip_spaces();
    const char c = peek();
    switch (c) {
      case '\'':
      case '"':
        return read_text(out);
      case '[':
        return read_list(out, ']', depth);
      case '(':
        return read_list(out, ')', depth);
      case '{':
        return read_mapping(out, depth);
      default:
        return read_word(out);
    }
  }

 private:
  bool read_list(std::string& out, char end, int depth) {
    ++at_;
    out += '[';
    for (bool first = true;; first = false) {
      skip_spaces();
      if (take(end)) {
        out += ']';
        return true;
      }
      if (!first && !take(',')) {
        return false;
      }
      skip_spaces();
      if (!first && take(end)) {
        out += ']';
        return true;
      }
      out += first ? "" : ", ";
      if (ended_ || !read_value(out, depth + 1)) {
        return false;
      }
    }
  }

  bool read_mapping(std::string& out, int depth) {
    ++at_;
    out += '{';
    for (bool first = true;; first = false) {
      skip_spaces();
      if (take('}')) {
        out += '}';
        return true;
      }
      if (!first && !take(',')) {
        return false;
      }
      skip_spaces();
      if (!first && take('}')) {
        out += '}';
        return true;
      }
      out += first ? "" : ", ";
      if (ended_ || (peek() != '\'' && peek() != '"') || !read_text(out)) {
        return false;
      }
      skip_spaces();
      if (!take(':')) {
        return false;
      }
      out += ": ";
      if (!read_value(out, depth + 1)) {
        return false;
      }
    }
  }

  // A number, True, False or None. JSON's words are taken too. The character behind a word decides where it ends.
  bool read_word(std::string& out) {
    const size_t begin = at_;
    while (is_word(peek()) || peek() == '.' || peek() == '-' || peek() == '+') {
      ++at_;
    }
    const std::string_view word = text_.substr(begin, at_ - begin);
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"True", "true"},
                                                                        {"False", "false"},
                                                                        {"None", "null"},
                                                                        {"true", "true"},
                                                                        {"false", "false"},
                                                                        {"null", "null"}};
    for (const auto& [python, json] : kWords) {
      if (word == python) {
        out += json;
        return true;
      }
    }
    const bool is_number = !word.empty() &&
                           word.find_first_not_of("0123456789.eE+-") == word.npos &&
                           nlohmann::json::accept(word);
    out += is_number ? word : "";
    return is_number;
  }

  bool read_text(std::string& out) {
    const char quote = peek();
    ++at_;
    std::string value;
    for (;;) {
      const char c = peek();
      if (ended_ || c == '\n') {
        return false;
      }
      ++at_;
      if (c == quote) {
        out += json_text_of(value);
        return true;
      }
      if (c != '\\') {
        value += c;
      } else if (!read_escape(value)) {
        return false;
      }
    }
  }

  bool read_escape(std::string& value) {
    const char c = peek();
    if (ended_) {
      return false;
    }
    ++at_;
    switch (c) {
      case 'n':
        value += '\n';
        return true;
      case 't':
        value += '\t';
        return true;
      case 'r':
        value += '\r';
        return true;
      case '\\':
      case '\'':
      case '"':
        value += c;
        return true;
      case 'x':
        return read_code(value, 2);
      case 'u':
        return read_code(value, 4);
      case 'U':
        return read_code(value, 8);
      default:  // Python keeps the backslash
        value += '\\';
        value += c;
        return true;
    }
  }

  bool read_code(std::string& value, size_t num_digits) {
    const std::string_view digits = text_.substr(at_, num_digits);
    uint32_t code = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    if (digits.size() < num_digits) {
      ended_ = ended_ || digits.empty() || whole;
      return false;
    }
    at_ += num_digits;
    return whole && append_code_point(value, code);
  }

  static bool append_code_point(std::string& value, uint32_t code) {
    constexpr uint32_t kLast = 0x10FFFF;
    if (code > kLast || (code >= 0xD800 && code < 0xE000)) {
      return false;
    }
    const auto add = [&value](uint32_t byte) { value += static_cast<char>(byte); };
    if (code < 0x80) {
      add(code);
    } else if (code < 0x800) {
      add(0xC0U | code >> 6U);
      add(0x80U | (code & 0x3FU));
    } else if (code < 0x10000) {
      add(0xE0U | code >> 12U);
      add(0x80U | (code >> 6U & 0x3FU));
      add(0x80U | (code & 0x3FU));
    } else {
      add(0xF0U | code >> 18U);
      add(0x80U | (code >> 12U & 0x3FU));
      add(0x80U | (code >> 6U & 0x3FU));
      add(0x80U | (code & 0x3FU));
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool ended_ = false;  // read past the text
};

// False if the text is no call or ends too early; see Reader::ended.
bool read_call(Reader& reader, PythonCall& call) {
  do {
    const std::string_view word = reader.take_word();
    if (reader.ended() || word.empty() || std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
      return false;
    }
    call.name += (call.name.empty() ? "" : ".") + std::string(word);
  } while (reader.take('.'));
  reader.skip_spaces();
  if (!reader.take('(')) {
    return false;
  }
  call.arguments = "{";
  for (bool first = true;; first = false) {
    reader.skip_spaces();
    if (reader.take(')')) {
      call.arguments += '}';
      return true;
    }
    if (!first && !reader.take(',')) {
      return false;
    }
    reader.skip_spaces();
    const std::string key(reader.take_word());
    reader.skip_spaces();
    if (key.empty() || !reader.take('=')) {
      return false;
    }
    call.arguments += (first ? "" : ", ") + json_text_of(key) + ": ";
    if (!reader.read_value(call.arguments, 0)) {
      return false;
    }
  }
}

}  // namespace

PythonCall read_python_call(std::string_view text) {
  PythonCall call;
  Reader reader(text);
  if (read_call(reader, call)) {
    call.status = PythonCall::Status::kDone;
    call.len = reader.at();
  } else if (reader.ended()) {
    call.status = PythonCall::Status::kMore;
  }
  return call;
}

std::optional<std::string> python_literal(std::string_view text) {
  Reader reader(text);
  std::string out;
  const bool read = reader.read_value(out, 0);
  reader.skip_spaces();
  return read && reader.at() == text.size() ? std::optional<std::string>(std::move(out))
                                            : std::nullopt;
}

}  // namespace warprow
