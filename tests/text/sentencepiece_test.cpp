// SPDX-License-Identifier: Apache-2.0
// SentencePiece's tokenizer.model: ids as the sentencepiece package gives them, added tokens, damaged files.
#include "tests/text/text_test_support.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    bits = bits << 6U | static_cast<uint32_t>(kDigits.find(c));
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out += static_cast<char>(bits >> static_cast<uint32_t>(num_bits) & 0xFFU);
    }
  }
  return out;
}

const nlohmann::json& vectors() {
  static const auto json = nlohmann::json::parse(
      test::read_file(test::source_path("tests/text/sentencepiece_vectors.json")));
  return json;
}

std::string model_file(const char* name) {
  return from_base64(vectors()["models"][name]["file"].get<std::string>());
}

Tokenizer load(std::string_view file, const char* config = "", const char* added = "") {
  return value_or_throw(Tokenizer::from_sentencepiece(file, config, added, "tokenizer.model"));
}

std::string error_of(std::string_view file, const char* config = "", const char* added = "") {
  const auto made = Tokenizer::from_sentencepiece(file, config, added, "m");
  return made ? "" : made.error().message;
}

constexpr const char* kNoBos = R"({"add_bos_token": false})";

// The package knows no special tokens in a text, and the engine does: these texts are not compared.
bool names_special(const Tokenizer& tokenizer, const std::string& text) {
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id) && text.find(tokenizer.token_text(id)) != std::string::npos) {
      return true;
    }
  }
  return false;
}

TEST(SentencePiece, IdsAsThePackageGivesThem) {
  const auto texts = vectors()["texts"].get<std::vector<std::string>>();
  int num_compared = 0;
  for (const auto& [name, model] : vectors()["models"].items()) {
    const Tokenizer tokenizer = load(from_base64(model["file"].get<std::string>()), kNoBos);
    EXPECT_EQ(tokenizer.vocab_size(), model["vocab_size"].get<int32_t>()) << name;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (names_special(tokenizer, texts[i])) {
        continue;
      }
      const auto wanted = model["ids"][i].get<std::vector<TokenId>>();
      EXPECT_EQ(tokenizer.encode(texts[i], true), wanted) << name << ": " << texts[i];
      // The package drops all marks at the beginning, where only one stands for the space that encoding adds.
      if (model["decoded"][i].is_string() && !texts[i].starts_with("\u2581")) {
        EXPECT_EQ(tokenizer.decode(wanted, true), model["decoded"][i].get<std::string>())
            << name << ": " << texts[i];
        ++num_compared;
      }
    }
  }
  EXPECT_GT(num_compared, 100);
}

// With a token for each byte every text comes back, however it is streamed.
TEST(SentencePiece, TextsComeBack) {
  for (const char* name : {"bpe", "unigram_bytes", "bpe_user_defined"}) {
    const Tokenizer tokenizer = load(model_file(name), kNoBos);
    for (const auto& text : vectors()["texts"].get<std::vector<std::string>>()) {
      if (names_special(tokenizer, text) || text.find("\u2581") != std::string::npos) {
        continue;  // a mark is a space
      }
      const std::vector<TokenId> ids = tokenizer.encode(text, false);
      EXPECT_EQ(tokenizer.decode(ids, true), text) << name;
      Detokenizer streamed(tokenizer, {});
      std::string all;
      for (const TokenId id : ids) {
        all += streamed.push(id);
      }
      EXPECT_EQ(all + streamed.flush(), text) << name;
    }
  }
}

TEST(SentencePiece, InvalidBytesAreByteTokens) {
  const Tokenizer tokenizer = load(model_file("bpe"), kNoBos);
  const std::vector<TokenId> ids = tokenizer.encode("ka\xFFlo\xF0\x9F", false);
  std::string bytes;
  for (const TokenId id : ids) {
    bytes += tokenizer.token_bytes(id);
  }
  EXPECT_EQ(bytes, " ka\xFFlo\xF0\x9F");
  const Tokenizer no_bytes = load(model_file("unigram"), kNoBos);
  EXPECT_EQ(no_bytes.encode("ka\xFF", false), no_bytes.encode("ka\uFFFD", false));
}

TEST(SentencePiece, TokensAroundATextAreThoseOfTheConfiguration) {
  const std::string file = model_file("bpe");
  const Tokenizer plain = load(file);
  const std::vector<TokenId> body = plain.encode("kalo", false);
  const TokenId bos = plain.find("<s>").value();
  const TokenId eos = plain.find("</s>").value();
  EXPECT_TRUE(plain.is_special(bos) && plain.is_special(eos));
  const auto with = [&body](std::vector<TokenId> before, std::vector<TokenId> after) {
    before.insert(before.end(), body.begin(), body.end());
    before.insert(before.end(), after.begin(), after.end());
    return before;
  };
  EXPECT_EQ(plain.encode("kalo", true), with({bos}, {}));
  EXPECT_EQ(load(file, R"({"add_eos_token": true})").encode("kalo", true), with({bos}, {eos}));
  EXPECT_EQ(load(file, R"({"bos_token": {"content": "</s>"}})").encode("kalo", true),
            with({eos}, {}));
}

TEST(SentencePiece, AddedTokensAreFoundInTheText) {
  const std::string file = model_file("bpe");
  const Tokenizer tokenizer =
      load(file,
           R"({"add_bos_token": false, "legacy": false, "added_tokens_decoder": {
      "1": {"content": "<s>", "special": true},
      "421": {"content": "<|user|>", "special": true, "rstrip": true},
      "422": {"content": "<tool>", "special": false, "lstrip": true}}})",
           R"({"<tool>": 9, "<|end|>": 430})");
  EXPECT_EQ(tokenizer.vocab_size(), 431);
  EXPECT_EQ(tokenizer.find("<|user|>"), 421);
  EXPECT_EQ(tokenizer.find("<tool>"), 422) << "the configuration wins";
  EXPECT_TRUE(tokenizer.is_special(421));
  EXPECT_FALSE(tokenizer.is_special(422));
  EXPECT_EQ(tokenizer.token_text(425), "") << "no token";
  const Tokenizer plain = load(file, R"({"add_bos_token": false, "add_prefix_space": false})");
  const std::vector<TokenId> word = plain.encode("kalo", false);
  std::vector<TokenId> wanted = {421};
  wanted.insert(wanted.end(), word.begin(), word.end());
  wanted.insert(wanted.end(), {422, 1, 430});
  EXPECT_EQ(tokenizer.encode("<|user|> \n kalo  <tool><s><|end|>", false), wanted);
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{421, 422, 1}, true), "<tool>");
}

// The older behaviour, which is the default, puts a space in front of the text behind every special token.
TEST(SentencePiece, ASpaceBehindSpecialTokens) {
  const std::string file = model_file("bpe");
  const Tokenizer legacy = load(file, kNoBos);
  const Tokenizer later = load(file, R"({"add_bos_token": false, "legacy": false})");
  std::vector<TokenId> with_space = legacy.encode("kalo", false);
  with_space.insert(with_space.begin(), legacy.find("<s>").value());
  EXPECT_EQ(legacy.encode("<s>kalo", false), with_space);
  EXPECT_EQ(later.encode("kalo", false), legacy.encode("kalo", false));
  EXPECT_NE(later.encode("<s>kalo", false), with_space);
}

TEST(SentencePiece, DamagedFilesAreRefused) {
  const std::string file = model_file("bpe");
  EXPECT_EQ(error_of(""), "m: it has no pieces");
  for (size_t size = 1; size < file.size(); size += 7) {
    (void)error_of(std::string_view(file).substr(0, size));  // an error or a smaller model
  }
  EXPECT_THAT(error_of("\x0a\xff\xff\xff\xff\x0f"), HasSubstr("a field of 4294967295 bytes has 0"));
  EXPECT_THAT(error_of("\x0f"), HasSubstr("unknown form 7"));
  EXPECT_THAT(error_of(std::string(12, '\xff')), HasSubstr("more than 64 bits"));
  const std::string unknown("\x0a\x09\x0a\x05<unk>\x18\x02", 11);
  EXPECT_EQ(error_of(unknown), "");
  EXPECT_THAT(error_of(unknown + unknown), HasSubstr("2 pieces of type unknown"));
  EXPECT_THAT(error_of(unknown + std::string("\x0a\x00", 2)), HasSubstr("piece 1 has 0 bytes"));
  EXPECT_THAT(error_of(unknown + std::string("\x0a\x03\x0a\x01\xff", 5)),
              HasSubstr("piece 1 is not UTF-8"));
  EXPECT_THAT(error_of(unknown + std::string("\x0a\x08\x0a\x01"
                                             "a\x15\x00\x00\xc0\x7f",
                                             10)),
              HasSubstr("piece 1 has the score NaN"));
  EXPECT_THAT(error_of(unknown + std::string("\x12\x02\x18\x03", 4)), HasSubstr("model_type is 3"));
  EXPECT_THAT(error_of(unknown + std::string("\x12\x03\x98\x02\x01", 5)),
              HasSubstr("no byte piece <0x00>"));
  EXPECT_THAT(error_of(unknown + std::string("\x1a\x06\x12\x04\x08\x00\x00\x00", 8)),
              HasSubstr("names an array of 8 bytes and has 0"));
  EXPECT_THAT(error_of(file, "[1]"), HasSubstr("tokenizer_config.json: not a JSON object"));
  EXPECT_THAT(error_of(file, R"({"added_tokens_decoder": {"4194304": "x"}})"),
              HasSubstr("the id 4194304 is not below 4194304"));
  EXPECT_THAT(error_of(file, "", R"({"x": -1})"), HasSubstr("id is not a number"));
}

}  // namespace
}  // namespace warprow
