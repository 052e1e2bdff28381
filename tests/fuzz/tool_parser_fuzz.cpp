// SPDX-License-Identifier: Apache-2.0 libFuzzer target: whatever a model writes and however it is cut
// into pieces, its calls come in order and the same, and a whole answer's are JSON.
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
  bool operator==(const Parsed&) const = default;
};

// Calls come with a name first, and their numbers grow by one.
Parsed read(const ChatPiece& all, bool failed) {
  Parsed out{all.content, all.reasoning, {}, failed};
  for (const ToolCallPiece& piece : all.calls) {
    if (!piece.name.empty()) {
      out.calls.emplace_back(piece.name, "");
    }
    WR_CHECK(piece.index + 1 == static_cast<int32_t>(out.calls.size()));
    out.calls.back().second += piece.arguments;
  }
  return out;
}

// Pieces of 1 to `longest` bytes.
Parsed parse(const ChatParserOptions& options, std::string_view text, size_t longest) {
  const auto parser = make_chat_parser(options);
  ChatPiece all;
  size_t len = longest;
  for (size_t at = 0; at < text.size(); at += len) {
    len = len % longest + 1;
    all.append(parser->push(text.substr(at, len)));
  }
  all.append(parser->finish());
  return read(all, parser->failed());
}

void check_whole(const ChatParserOptions& options, std::string_view text) {
  const auto parser = make_chat_parser(options);
  const ChatPiece piece = parse_whole(*parser, text, /*cut_off=*/false);
  const bool forced = options.format == ToolFormat::kList || options.format == ToolFormat::kNamed;
  for (const auto& [name, arguments] : read(piece, false).calls) {
    WR_CHECK(forced || nlohmann::json::accept(arguments));
  }
}

}  // namespace
}  // namespace warprow

// The first byte picks format and options.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using warprow::ToolFormat;
  if (size == 0) {
    return 0;
  }
  constexpr int kNumFormats = static_cast<int>(ToolFormat::kNamed) + 1;
  const warprow::ChatParserOptions options{.format = static_cast<ToolFormat>(*data % kNumFormats),
                                           .function = "f",
                                           .parallel = (*data & 0x40U) == 0,
                                           .reasoning = (*data & 0x80U) != 0};
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const warprow::Parsed at_once = warprow::parse(options, text, text.size() + 1);
  for (const size_t longest : {size_t{1}, size_t{3}, std::max(text.size() / 2, size_t{1})}) {
    WR_CHECK(warprow::parse(options, text, longest) == at_once);
  }
  warprow::check_whole(options, text);
  return 0;
}
