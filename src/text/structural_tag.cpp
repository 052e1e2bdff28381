// SPDX-License-Identifier: Apache-2.0
#include "text/structural_tag.h"

#include "text/ordered_json.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;
using Expression = Result<std::string>;  // of Lark, as it stands in a sequence

constexpr int64_t kMostRepeats = 2000;  // as in EBNF

tl::unexpected<Error> must_be(const std::string& field, std::string_view wanted) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: must be {}", field, wanted));
}
tl::unexpected<Error> unsupported_tag(const std::string& field) {
  return fail(ErrorCode::kUnsupported, fmt::format("{}: not supported yet", field));
}

// The member, or nullptr if it is absent or null.
const Json* find_key(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string compact_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A regex that matches the text, as it stands between slashes.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (std::string_view("\\.+*?()|[]{}^$#&-~/").find(c) != std::string_view::npos) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

// A client's regex between slashes: no slash and no line end of it may end the literal.
std::string regex_literal(std::string_view pattern) {
  std::string out = "/";
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool quotes = pattern[i] == '\\' && i + 1 < pattern.size();
    const char c = quotes ? pattern[++i] : pattern[i];
    if (c == '\n' || c == '\r') {
      out += c == '\n' ? "\\n" : "\\r";
    } else {
      out += quotes || c == '/' || c == '\\' ? "\\" : "";
      out += c;
    }
  }
  return out + "/";
}

// A text of the client, in pieces of text and special tokens.
struct Piece {
  std::string lark;   // a string, or a token by its id
  std::size_t bytes;  // of the text
  bool is_token;
};
using Literal = std::vector<Piece>;

std::string joined(const Literal& literal, std::size_t first = 0) {
  std::string out;
  for (std::size_t i = first; i < literal.size(); ++i) {
    out += (out.empty() ? "" : " ") + literal[i].lark;
  }
  return out.empty() ? R"("")" : out;
}

std::string either(const std::vector<std::string>& alternatives) {
  return alternatives.size() == 1 ? alternatives.front()
                                  : fmt::format("({})", fmt::join(alternatives, " | "));
}

// The texts one of which must follow a format; empty: nothing need follow.
using Ends = std::vector<Literal>;

std::string either_end(const Ends& ends) {
  std::vector<std::string> all;
  for (const Literal& end : ends) {
    all.push_back(joined(end));
  }
  return either(all);
}

// Text of any length, without certain texts in it: two terminals by their names.
struct FreeText {
  std::string any;        // also empty; for texts that end with a marker
  std::string not_empty;  // to the end
};

// What begins a structured part of a free text, and the alternatives behind it.
struct Dispatch {
  Literal trigger;  // not empty
  std::vector<std::string> bodies;
};

class Translator {
 public:
  explicit Translator(const SpecialTokens& specials) : specials_(specials) {}

  Result<std::string> translate(const Json& root);

 private:
  struct Format {
    const char* type;
    Expression (Translator::*write)(const std::string& field, const Json& value, const Ends& ends);
  };
  static const std::array<Format, 14> kFormats;

  // The format, followed by one of the ends.
  Expression write(const std::string& field, const Json& value, const Ends& ends);
  Expression write_const(const std::string& field, const Json& value, const Ends& ends);
  Expression write_schema(const std::string& field, const Json& value, const Ends& ends);
  Expression write_regex(const std::string& field, const Json& value, const Ends& ends);
  Expression write_any_text(const std::string& field, const Json& value, const Ends& ends);
  Expression write_sequence(const std::string& field, const Json& value, const Ends& ends);
  Expression write_or(const std::string& field, const Json& value, const Ends& ends);
  Expression write_optional(const std::string& field, const Json& value, const Ends& ends);
  Expression write_plus(const std::string& field, const Json& value, const Ends& ends);
  Expression write_star(const std::string& field, const Json& value, const Ends& ends);
  Expression write_repeat(const std::string& field, const Json& value, const Ends& ends);
  Expression write_tag(const std::string& field, const Json& value, const Ends& ends);
  Expression write_triggered(const std::string& field, const Json& value, const Ends& ends);
  Expression write_separated(const std::string& field, const Json& value, const Ends& ends);
  Expression write_dispatch(const std::string& field, const Json& value, const Ends& ends);

  Expression write_repeated(const std::string& field,
                            const Json& value,
                            const std::string& times,
                            const Ends& ends);
  Expression tag_behind(const std::string& field, const Json& tag, const std::string& begin);
  Result<void> add_tag(const std::string& field,
                       const Json& tag,
                       const std::vector<std::string>& triggers,
                       std::vector<Dispatch>& to);
  // Free text in which each trigger is followed by one of its bodies; once or again and again. Then one of the ends.
  std::string free_text(const FreeText& text,
                        const std::vector<Dispatch>& parts,
                        bool once,
                        const Ends& ends);
  // Free text up to one of the ends.
  std::string text_until(const FreeText& text, const Ends& ends);
  // Free text up to a literal that is not empty.
  std::string text_up_to(const FreeText& text, const Literal& literal);
  Result<FreeText> text_without(const std::string& field, const Json* excludes);

  Literal literal(std::string_view text) const;
  Result<Ends> read_ends(const std::string& field, const Json& tag) const;
  // A rule of this body, by its name.
  std::string rule(const std::string& body, const char* attributes = "") {
    const std::string name = fmt::format("r{}", num_rules_++);
    rules_ += fmt::format("{}{}: {}\n", name, attributes, body);
    return name;
  }

  const SpecialTokens& specials_;
  std::string rules_;
  int num_rules_ = 0;
};

Result<std::string> read_text(const std::string& field, const Json* value) {
  return value != nullptr && value->is_string() ? Result<std::string>(value->get<std::string>())
                                                : must_be(field, "text");
}

Result<std::vector<std::string>> read_texts(const std::string& field, const Json* value) {
  const bool is_list = value != nullptr && value->is_array() && !value->empty();
  const auto is_text = [](const Json& each) {
    return each.is_string() && !each.get_ref<const std::string&>().empty();
  };
  if (!is_list || !std::all_of(value->begin(), value->end(), is_text)) {
    return must_be(field, "a list of texts that are not empty");
  }
  return value->get<std::vector<std::string>>();
}

Result<bool> read_flag(const std::string& field, const Json& object, const char* key) {
  const Json* value = find_key(object, key);
  if (value != nullptr && !value->is_boolean()) {
    return must_be(fmt::format("{}.{}", field, key), "true or false");
  }
  return value != nullptr && value->get<bool>();
}

Result<const Json*> read_list(const std::string& field, const Json& object, const char* key) {
  const Json* value = find_key(object, key);
  if (value == nullptr || !value->is_array() || value->empty()) {
    return must_be(fmt::format("{}.{}", field, key), "a list of one format or more");
  }
  return value;
}

std::string type_of(const Json& format) {
  const Json* type = format.is_object() ? find_key(format, "type") : nullptr;
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

bool has_end(const Json& tag) {
  const Json* end = find_key(tag, "end");
  return end != nullptr && *end != "" && *end != Json::array();
}

// Whether the format may take all text that follows. Nothing but an end can come behind it.
bool is_unlimited(const Json& format) {
  const std::string type = type_of(format);
  if (type == "any_text" || type == "triggered_tags" || type == "dispatch") {
    return true;
  }
  if (type == "tag" && has_end(format)) {
    return false;
  }
  const Json* content = find_key(format, "content");
  if (content != nullptr && content->is_object()) {
    return is_unlimited(*content);
  }
  const Json* elements = find_key(format, "elements");
  if (elements == nullptr || !elements->is_array() || elements->empty()) {
    return false;
  }
  return type == "sequence" ? is_unlimited(elements->back())
                            : std::any_of(elements->begin(), elements->end(), &is_unlimited);
}

Literal Translator::literal(std::string_view text) const {
  Literal out;
  std::string plain;
  const auto add_plain = [&] {
    if (!plain.empty()) {
      out.push_back({compact_json(plain), plain.size(), false});
      plain.clear();
    }
  };
  while (!text.empty()) {
    if (const auto token = specials_.at(text)) {
      add_plain();
      out.push_back({fmt::format("<[{}]>", token->second), token->first, true});
      text.remove_prefix(token->first);
    } else {
      plain += text.front();
      text.remove_prefix(1);
    }
  }
  add_plain();
  return out;
}

// A text, or a list of texts. One of them ends the tag.
Result<Ends> Translator::read_ends(const std::string& field, const Json& tag) const {
  const Json* value = find_key(tag, "end");
  const bool is_list = value != nullptr && value->is_array() && !value->empty();
  Ends ends;
  for (const Json& each : is_list ? *value : Json::array({value == nullptr ? Json() : *value})) {
    if (!each.is_string()) {
      return must_be(field + ".end", "text or a list of texts");
    }
    ends.push_back(literal(each.get<std::string>()));
  }
  return ends;
}

Result<FreeText> Translator::text_without(const std::string& field, const Json* excludes) {
  if (excludes == nullptr || *excludes == Json::array()) {
    return FreeText{"TEXT", "SOME_TEXT"};
  }
  const auto texts = read_texts(field + ".excludes", excludes);
  if (!texts) {
    return tl::unexpected(texts.error());
  }
  std::vector<std::string> parts;
  for (const std::string& text : *texts) {
    parts.push_back(escaped(text));
  }
  const int n = num_rules_++;
  FreeText out{fmt::format("TEXT_{}", n), fmt::format("SOME_TEXT_{}", n)};
  for (const auto& [name, all] : {std::pair(out.any, "*"), std::pair(out.not_empty, "+")}) {
    rules_ +=
        fmt::format("{}: /(?s:.{})/ & ~/(?s:.*)({})(?s:.*)/\n", name, all, fmt::join(parts, "|"));
  }
  return out;
}

std::string Translator::text_up_to(const FreeText& text, const Literal& literal) {
  if (literal.front().is_token) {
    return fmt::format("{}? {}", text.not_empty, joined(literal));
  }
  std::string out = rule(fmt::format("{} {}", text.any, literal.front().lark), "[lazy]");
  return literal.size() > 1 ? out + " " + joined(literal, 1) : out;
}

std::string Translator::text_until(const FreeText& text, const Ends& ends) {
  std::vector<std::string> all;
  for (const Literal& end : ends) {
    all.push_back(end.empty() ? text.not_empty + "?" : text_up_to(text, end));
  }
  return all.empty() ? text.not_empty + "?" : either(all);
}

std::string Translator::free_text(const FreeText& text,
                                  const std::vector<Dispatch>& parts,
                                  bool once,
                                  const Ends& ends) {
  std::vector<std::string> all;
  all.reserve(parts.size());
  for (const Dispatch& part : parts) {
    all.push_back(text_up_to(text, part.trigger) + " " + either(part.bodies));
  }
  const std::string rest = text_until(text, ends);
  if (!once) {
    return fmt::format("({})* {}", fmt::join(all, " | "), rest);
  }
  const std::string end = ends.empty() ? "" : " " + either_end(ends);
  return fmt::format("(({}){} | {})", fmt::join(all, " | "), end, rest);
}

Expression Translator::write_const(const std::string& field, const Json& value, const Ends& ends) {
  Result<std::string> text = read_text(field + ".value", find_key(value, "value"));
  if (!text) {
    return text;
  }
  return joined(literal(*text)) + (ends.empty() ? "" : " " + either_end(ends));
}

Expression Translator::write_schema(const std::string& field, const Json& value, const Ends& ends) {
  const Json* style = find_key(value, "style");
  if (style != nullptr && *style != "json") {
    return unsupported_tag(field + ".style");
  }
  if (const Json* order = find_key(value, "any_order"); order != nullptr && *order != false) {
    return unsupported_tag(field + ".any_order");
  }
  const Json* given = find_key(value, "json_schema");
  if (given == nullptr || !(given->is_object() || *given == true)) {
    return must_be(field + ".json_schema", "a JSON schema");
  }
  Json schema = given->is_object() ? *given : Json::object();
  if (!schema.contains("x-guidance")) {  // a weak model might write nothing but white space
    schema["x-guidance"] = {{"whitespace_pattern", R"([\x20\x0A\x0D\x09]{1,32})"}};
  }
  return rule("%json " + compact_json(schema)) + (ends.empty() ? "" : " " + either_end(ends));
}

Expression Translator::write_regex(const std::string& field, const Json& value, const Ends& ends) {
  Result<std::string> pattern = read_text(field + ".pattern", find_key(value, "pattern"));
  if (!pattern) {
    return pattern;
  }
  return (pattern->empty() ? R"("")" : regex_literal(*pattern)) +
         (ends.empty() ? "" : " " + either_end(ends));
}

Expression Translator::write_any_text(const std::string& field,
                                      const Json& value,
                                      const Ends& ends) {
  if (find_key(value, "max_tokens") != nullptr) {
    return unsupported_tag(field + ".max_tokens");
  }
  return text_without(field, find_key(value, "excludes")).map([&](const FreeText& text) {
    return text_until(text, ends);
  });
}

Expression Translator::write_sequence(const std::string& field,
                                      const Json& value,
                                      const Ends& ends) {
  const Result<const Json*> elements = read_list(field, value, "elements");
  if (!elements) {
    return tl::unexpected(elements.error());
  }
  std::string out;
  for (std::size_t i = 0; i < (*elements)->size(); ++i) {
    const std::string where = fmt::format("{}.elements[{}]", field, i);
    const Json& element = (**elements)[i];
    const bool is_last = i + 1 == (*elements)->size();
    if (!is_last && is_unlimited(element)) {
      return must_be(where, "the last element, or in a tag with an end: it takes any text");
    }
    const Expression part = write(where, element, is_last ? ends : Ends());
    if (!part) {
      return part;
    }
    out += (out.empty() ? "" : " ") + *part;
  }
  return out;
}

Expression Translator::write_or(const std::string& field, const Json& value, const Ends& ends) {
  const Result<const Json*> elements = read_list(field, value, "elements");
  if (!elements) {
    return tl::unexpected(elements.error());
  }
  std::vector<std::string> all;
  for (std::size_t i = 0; i < (*elements)->size(); ++i) {
    Expression part = write(fmt::format("{}.elements[{}]", field, i), (**elements)[i], ends);
    if (!part) {
      return part;
    }
    all.push_back(*std::move(part));
  }
  return fmt::format("({})", fmt::join(all, " | "));
}

Expression Translator::write_optional(const std::string& field,
                                      const Json& value,
                                      const Ends& ends) {
  const Json* content = find_key(value, "content");
  return write(field + ".content", content == nullptr ? Json() : *content, ends)
      .map([&](const std::string& inner) {
        return ends.empty() ? fmt::format("({})?", inner)
                            : fmt::format("({} | {})", inner, either_end(ends));
      });
}

Expression Translator::write_repeated(const std::string& field,
                                      const Json& value,
                                      const std::string& times,
                                      const Ends& ends) {
  const Json* content = find_key(value, "content");
  if (content != nullptr && is_unlimited(*content)) {
    return must_be(field + ".content", "a format that ends: this one takes any text");
  }
  return write(field + ".content", content == nullptr ? Json() : *content, {})
      .map([&](const std::string& inner) {
        return rule(inner) + times + (ends.empty() ? "" : " " + either_end(ends));
      });
}

Expression Translator::write_plus(const std::string& field, const Json& value, const Ends& ends) {
  return write_repeated(field, value, "+", ends);
}

Expression Translator::write_star(const std::string& field, const Json& value, const Ends& ends) {
  return write_repeated(field, value, "*", ends);
}

Expression Translator::write_repeat(const std::string& field, const Json& value, const Ends& ends) {
  const auto count = [&](const char* key) -> std::optional<int64_t> {
    const Json* number = find_key(value, key);
    return number != nullptr && number->is_number_integer()
               ? std::optional<int64_t>(number->get<int64_t>())
               : std::nullopt;
  };
  const std::optional<int64_t> min = count("min");
  const std::optional<int64_t> max = count("max");
  if (!min || *min < 0 || *min > kMostRepeats) {
    return must_be(field + ".min", fmt::format("a whole number of [0, {}]", kMostRepeats));
  }
  const int64_t least = std::max<int64_t>(*min, 1);
  if (!max || (*max != -1 && (*max < least || *max > kMostRepeats))) {
    return must_be(field + ".max",
                   fmt::format("-1 or a whole number of [{}, {}]", least, kMostRepeats));
  }
  const std::string times =
      *max == -1 ? fmt::format("{{{},}}", *min) : fmt::format("{{{},{}}}", *min, *max);
  return write_repeated(field, value, times, ends);
}

// The tag behind its begin, or behind a part of it: `begin` is the rest of that as an expression.
Expression Translator::tag_behind(const std::string& field,
                                  const Json& tag,
                                  const std::string& begin) {
  const Result<Ends> ends = read_ends(field, tag);
  if (!ends) {
    return tl::unexpected(ends.error());
  }
  const Json* content = find_key(tag, "content");
  return write(field + ".content", content == nullptr ? Json() : *content, *ends)
      .map([&](const std::string& inner) { return rule(begin + " " + inner); });
}

Expression Translator::write_tag(const std::string& field, const Json& value, const Ends& ends) {
  Result<std::string> begin = read_text(field + ".begin", find_key(value, "begin"));
  if (!begin) {
    return begin;
  }
  return tag_behind(field, value, joined(literal(*begin))).map([&](const std::string& tag) {
    return ends.empty() ? tag : tag + " " + either_end(ends);
  });
}

// Adds a tag to the part of its trigger.
Result<void> Translator::add_tag(const std::string& field,
                                 const Json& tag,
                                 const std::vector<std::string>& triggers,
                                 std::vector<Dispatch>& to) {
  if (type_of(tag) != "tag") {
    return must_be(field, "an object of type tag");
  }
  const Result<std::string> begin = read_text(field + ".begin", find_key(tag, "begin"));
  if (!begin) {
    return tl::unexpected(begin.error());
  }
  const auto begins = [&](const std::string& trigger) { return begin->starts_with(trigger); };
  const auto trigger = std::find_if(triggers.begin(), triggers.end(), begins);
  if (trigger == triggers.end() || std::count_if(trigger, triggers.end(), begins) > 1) {
    return must_be(field + ".begin", "a text that begins with one of the triggers, and only one");
  }
  // A trigger may be a part of a special token.
  const Literal whole = literal(*begin);
  const bool in_token = whole.front().is_token && trigger->size() <= whole.front().bytes;
  const Literal lead = in_token ? Literal{whole.front()} : literal(*trigger);
  const Literal rest = in_token ? Literal(whole.begin() + 1, whole.end())
                                : literal(std::string_view(*begin).substr(trigger->size()));
  Expression body = tag_behind(field, tag, joined(rest));
  if (!body) {
    return tl::unexpected(body.error());
  }
  const std::string name = joined(lead);
  auto part = std::find_if(
      to.begin(), to.end(), [&](const Dispatch& each) { return joined(each.trigger) == name; });
  if (part == to.end()) {
    part = to.insert(to.end(), {lead, {}});
  }
  part->bodies.push_back(*std::move(body));
  return {};
}

Expression Translator::write_triggered(const std::string& field,
                                       const Json& value,
                                       const Ends& ends) {
  const auto triggers = read_texts(field + ".triggers", find_key(value, "triggers"));
  const Result<const Json*> tags = read_list(field, value, "tags");
  const Result<bool> at_least_one = read_flag(field, value, "at_least_one");
  const Result<bool> once = read_flag(field, value, "stop_after_first");
  const Result<FreeText> text = text_without(field, find_key(value, "excludes"));
  if (!triggers) {
    return tl::unexpected(triggers.error());
  }
  if (!tags) {
    return tl::unexpected(tags.error());
  }
  for (const auto* flag : {&at_least_one, &once}) {
    if (!*flag) {
      return tl::unexpected(flag->error());
    }
  }
  if (!text) {
    return tl::unexpected(text.error());
  }
  std::vector<Dispatch> parts;
  for (std::size_t i = 0; i < (*tags)->size(); ++i) {
    if (Result<void> added =
            add_tag(fmt::format("{}.tags[{}]", field, i), (**tags)[i], *triggers, parts);
        !added) {
      return tl::unexpected(added.error());
    }
  }
  if (!*at_least_one) {
    return free_text(*text, parts, *once, ends);
  }
  std::vector<std::string> first;  // no text precedes it
  first.reserve(parts.size());
  for (const Dispatch& part : parts) {
    first.push_back(joined(part.trigger) + " " + either(part.bodies));
  }
  const std::string rest =
      *once ? (ends.empty() ? "" : either_end(ends)) : free_text(*text, parts, false, ends);
  return either({fmt::format("({})", fmt::join(first, " | "))}) + (rest.empty() ? "" : " " + rest);
}

Expression Translator::write_separated(const std::string& field,
                                       const Json& value,
                                       const Ends& ends) {
  const Result<const Json*> tags = read_list(field, value, "tags");
  Result<std::string> separator = read_text(field + ".separator", find_key(value, "separator"));
  const Result<bool> at_least_one = read_flag(field, value, "at_least_one");
  const Result<bool> once = read_flag(field, value, "stop_after_first");
  if (!tags) {
    return tl::unexpected(tags.error());
  }
  if (!separator) {
    return separator;
  }
  for (const auto* flag : {&at_least_one, &once}) {
    if (!*flag) {
      return tl::unexpected(flag->error());
    }
  }
  std::vector<std::string> all;
  for (std::size_t i = 0; i < (*tags)->size(); ++i) {
    const std::string where = fmt::format("{}.tags[{}]", field, i);
    const Json& tag = (**tags)[i];
    if (type_of(tag) != "tag") {
      return must_be(where, "an object of type tag");
    }
    if (is_unlimited(tag)) {
      return must_be(where + ".end", "a text: the tag takes any text");
    }
    Expression one = write_tag(where, tag, {});
    if (!one) {
      return one;
    }
    all.push_back(*std::move(one));
  }
  const std::string one = rule(either(all));
  const std::string list =
      *once ? one : fmt::format("{} ({} {})*", one, joined(literal(*separator)), one);
  return (*at_least_one ? list : fmt::format("({})?", list)) +
         (ends.empty() ? "" : " " + either_end(ends));
}

Expression Translator::write_dispatch(const std::string& field,
                                      const Json& value,
                                      const Ends& ends) {
  const Result<const Json*> rules = read_list(field, value, "rules");
  const Json* loop = find_key(value, "loop");
  const Result<FreeText> text = text_without(field, find_key(value, "excludes"));
  if (!rules) {
    return tl::unexpected(rules.error());
  }
  if (loop != nullptr && !loop->is_boolean()) {
    return must_be(field + ".loop", "true or false");
  }
  if (!text) {
    return tl::unexpected(text.error());
  }
  std::vector<Dispatch> parts;
  for (std::size_t i = 0; i < (*rules)->size(); ++i) {
    const std::string where = fmt::format("{}.rules[{}]", field, i);
    const Json& pair = (**rules)[i];
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || pair[0] == "") {
      return must_be(where, "a pair of a text and a format");
    }
    if (is_unlimited(pair[1])) {
      return must_be(where + "[1]", "a format that ends: this one takes any text");
    }
    Expression body = write(where + "[1]", pair[1], {});
    if (!body) {
      return body;
    }
    parts.push_back({literal(pair[0].get<std::string>()), {*std::move(body)}});
  }
  return free_text(*text, parts, loop != nullptr && !loop->get<bool>(), ends);
}

constexpr std::array<const char*, 7> kLater = {"grammar",
                                               "token",
                                               "exclude_token",
                                               "any_tokens",
                                               "token_triggered_tags",
                                               "token_dispatch",
                                               "qwen_xml_parameter"};

const std::array<Translator::Format, 14> Translator::kFormats = {{
    {"const_string", &Translator::write_const},
    {"json_schema", &Translator::write_schema},
    {"regex", &Translator::write_regex},
    {"any_text", &Translator::write_any_text},
    {"sequence", &Translator::write_sequence},
    {"or", &Translator::write_or},
    {"optional", &Translator::write_optional},
    {"plus", &Translator::write_plus},
    {"star", &Translator::write_star},
    {"repeat", &Translator::write_repeat},
    {"tag", &Translator::write_tag},
    {"triggered_tags", &Translator::write_triggered},
    {"tags_with_separator", &Translator::write_separated},
    {"dispatch", &Translator::write_dispatch},
}};

Expression Translator::write(const std::string& field, const Json& value, const Ends& ends) {
  const std::string type = type_of(value);
  for (const Format& format : kFormats) {
    if (type == format.type) {
      return (this->*format.write)(field, value, ends);
    }
  }
  if (std::find(kLater.begin(), kLater.end(), type) != kLater.end()) {
    return unsupported_tag(fmt::format("{}.type {}", field, type));
  }
  return must_be(field, "an object whose type is that of a format");
}

// The older form: free text with triggers, and JSON between the markers.
Result<Json> format_of_structures(const Json& root) {
  const Json* structures = find_key(root, "structures");
  if (structures == nullptr || !structures->is_array()) {
    return must_be("format", "an object with a type");
  }
  Json tags = Json::array();
  for (const Json& each : *structures) {
    if (!each.is_object()) {
      return must_be("structures", "a list of objects with begin, schema and end");
    }
    const Json* schema = find_key(each, "schema");
    tags.push_back({{"type", "tag"},
                    {"begin", each.value("begin", Json())},
                    {"content",
                     {{"type", "json_schema"},
                      {"json_schema", schema == nullptr ? Json{{"type", "object"}} : *schema}}},
                    {"end", each.value("end", Json())}});
  }
  return Json{{"type", "triggered_tags"},
              {"triggers", root.value("triggers", Json())},
              {"tags", std::move(tags)}};
}

Result<std::string> Translator::translate(const Json& root) {
  if (type_of(root) != "structural_tag") {
    return must_be("type", "structural_tag");
  }
  const Json* format = find_key(root, "format");
  const bool is_older = format == nullptr;
  const Result<Json> chosen = is_older ? format_of_structures(root) : Result<Json>(*format);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  return write(is_older ? "structures" : "format", *chosen, {}).map([this](const std::string& all) {
    return fmt::format("start: {}\n{}TEXT: /(?s:.*)/\nSOME_TEXT: /(?s:.+)/\n", all, rules_);
  });
}

}  // namespace

SpecialTokens::SpecialTokens(const Tokenizer& tokenizer) {
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id) && !tokenizer.token_text(id).empty()) {
      ids_.emplace(tokenizer.token_text(id), id);
    }
  }
}

std::optional<std::pair<std::size_t, TokenId>> SpecialTokens::at(std::string_view text) const {
  auto above = ids_.upper_bound(text);
  while (above != ids_.begin()) {
    const auto& [known, id] = *std::prev(above);
    const auto differs = std::mismatch(known.begin(), known.end(), text.begin(), text.end());
    if (differs.first == known.end()) {
      return std::pair(known.size(), id);
    }
    // A shorter token that `text` begins with is no longer than what both have in common.
    const auto common = static_cast<std::size_t>(differs.first - known.begin());
    if (common == 0) {
      return std::nullopt;
    }
    above = ids_.upper_bound(text.substr(0, common));
  }
  return std::nullopt;
}

Result<std::string> structural_tag_lark(std::string_view json, const SpecialTokens& specials) {
  const Result<Json> root = parse_ordered_object(json, "the tag");
  if (!root) {
    return tl::unexpected(root.error());
  }
  return Translator(specials).translate(*root);
}

}  // namespace warprow
