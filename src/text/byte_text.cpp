// SPDX-License-Identifier: Apache-2.0
#include "text/byte_text.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using PlainJson = nlohmann::json;

// The character that stands for a byte in byte-level vocabularies: the byte itself if it is printable, else the next
// code point from U+0100 on.
std::string byte_character(int byte, int& next) {
  const bool prints =
      (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
  const int code = prints ? byte : next++;
  if (code < 0x80) {
    return {static_cast<char>(code)};
  }
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

PlainJson byte_tokenizer() {
  PlainJson vocab = PlainJson::object();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[byte_character(byte, next)] = byte;
  }
  const PlainJson bytes = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", PlainJson::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", PlainJson::array()}}}};
}

}  // namespace

Result<std::unique_ptr<TextModel>> make_byte_text() {
  auto tokenizer = Tokenizer::from_json(byte_tokenizer().dump(), "the byte tokenizer");
  if (!tokenizer) {
    return tl::unexpected(tokenizer.error());
  }
  return std::make_unique<TextModel>(
      TextModel{*std::move(tokenizer),
                fail(ErrorCode::kUnsupported, "a model without a tokenizer has no chat template"),
                std::nullopt,
                {},
                SamplingDefaults{}});
}

}  // namespace warprow
