// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: however a model's text is split, its reasoning, content and calls are the same. Calls come in
// order, and those of a whole answer are JSON.
#include "server/chat/tool_parser.h"

#include "base/check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

struct Parsed {
  std::string content;
  std::string reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
  bool failed = false;
  size_t body_at = 0;
  bool operator==(const Parsed&) const = default;
};

// A call starts with its name, and call numbers increase by one.
Parsed read(const ChatPiece& all, const ChatParser& parser) {
  Parsed out{all.content, all.reasoning, {}, parser.failed(), parser.body_at()};
  for (const ToolCallPiece& piece : all.calls) {
    if (!piece.name.empty()) {
      out.calls.emplace_back(piece.name, "");
    }
    WR_CHECK(piece.index + 1 == static_cast<int32_t>(out.calls.size()));
    out.calls.back().second += piece.arguments;
  }
  return out;
}

// next_len returns the length of the piece that begins at an offset.
template <typename NextLen>
Parsed parse(const ChatParserOptions& options, std::string_view text, NextLen next_len) {
  const auto parser = make_chat_parser(options);
  ChatPiece all;
  for (size_t at = 0; at < text.size();) {
    const std::string_view piece = text.substr(at, next_len(at));
    all.append(parser->push(piece));
    at += piece.size();
  }
  all.append(parser->finish());
  return read(all, *parser);
}

void check_pieces(const ChatParserOptions& options, std::string_view text, const Parsed& at_once) {
  for (const size_t longest : {size_t{1}, size_t{3}, std::max(text.size() / 2, size_t{1})}) {
    size_t len = longest;
    const auto next = [&](size_t) { return len = len % longest + 1; };
    WR_CHECK(parse(options, text, next) == at_once);
  }
  // Split points come from the text itself, so that the fuzzer chooses them.
  constexpr size_t kLongest = 16;
  const auto chosen = [&](size_t at) { return static_cast<uint8_t>(text[at]) % kLongest + 1; };
  WR_CHECK(parse(options, text, chosen) == at_once);
}

bool is_forced(const ChatParserOptions& options) {
  return options.format == ToolFormat::kList || options.format == ToolFormat::kNamed;
}

void check_whole(const ChatParserOptions& options, std::string_view text, const Parsed& at_once) {
  for (const bool cut_off : {false, true}) {
    const auto parser = make_chat_parser(options);
    const Parsed whole = read(parse_whole(*parser, text, cut_off), *parser);
    WR_CHECK(whole == at_once || (!cut_off && whole.failed && whole.calls.empty()));
    for (const auto& [name, arguments] : whole.calls) {
      WR_CHECK(cut_off || is_forced(options) || nlohmann::json::accept(arguments));
    }
  }
}

// The parser adds no text, and without a format it changes nothing.
void check_content(const ChatParserOptions& options, std::string_view text, const Parsed& parsed) {
  WR_CHECK(parsed.content.size() + parsed.reasoning.size() <= text.size());
  if (options.format == ToolFormat::kNone && options.reasoning == ReasoningFormat::kNone) {
    WR_CHECK(parsed.content == text && parsed.calls.empty() && !parsed.failed);
  }
}

void check(ChatParserOptions options, std::string_view text) {
  const Parsed at_once = parse(options, text, [&](size_t) { return text.size(); });
  check_pieces(options, text, at_once);
  check_whole(options, text, at_once);
  check_content(options, text, at_once);
  options.include_reasoning = false;
  Parsed without = parse(options, text, [&](size_t) { return text.size(); });
  WR_CHECK(without.reasoning.empty());
  without.reasoning = at_once.reasoning;
  WR_CHECK(without == at_once);
}

}  // namespace
}  // namespace warprow

// The first byte selects format and options: the format by its low bits, 0x40 one call only, 0x80 <think>, 0x20 Granite's
// reasoning. Harmony is both format and reasoning.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using warprow::ReasoningFormat;
  using warprow::ToolFormat;
  if (size == 0) {
    return 0;
  }
  constexpr int kNumFormats = static_cast<int>(ToolFormat::kHarmony) + 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto format = static_cast<ToolFormat>((*data & 0x1FU) % kNumFormats);
  ReasoningFormat reasoning = (*data & 0x80U) != 0   ? ReasoningFormat::kThink
                              : (*data & 0x20U) != 0 ? ReasoningFormat::kGranite
                                                     : ReasoningFormat::kNone;
  reasoning = format == ToolFormat::kHarmony ? ReasoningFormat::kHarmony : reasoning;
  for (const bool begins_reasoning : {false, true}) {
    warprow::check({.format = format,
                    .function = "f",
                    .parallel = (*data & 0x40U) == 0,
                    .reasoning = reasoning,
                    .begins_reasoning = begins_reasoning},
                   text);
  }
  return 0;
}
