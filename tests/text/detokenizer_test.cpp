// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include "base/utf8.h"
#include "tests/text/text_test_support.h"

#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

// Byte-level BPE without merges: tokens 0 to 255 are the alphabet's 256 characters in byte order.
struct ByteVocab {
  std::vector<std::string> texts;
  GgufVocab vocab;
};

ByteVocab byte_vocab() {
  ByteVocab v;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int code = prints ? b : next++;
    v.texts.push_back(code < 0x80 ? std::string(1, static_cast<char>(code))
                                  : std::string{static_cast<char>(0xC0 | (code >> 6)),
                                                static_cast<char>(0x80 | (code & 0x3F))});
  }
  v.texts.emplace_back("<|end|>");
  v.vocab.model = "gpt2";
  v.vocab.pre = "gpt-2";
  v.vocab.types.assign(256, 1);
  v.vocab.types.push_back(3);
  return v;
}

Tokenizer byte_tokenizer() {
  ByteVocab v = byte_vocab();
  v.vocab.tokens.assign(v.texts.begin(), v.texts.end());
  return value_or_throw(Tokenizer::from_gguf(v.vocab, "test"));
}

// A SentencePiece vocabulary with a few words and all bytes.
Tokenizer spm_tokenizer() {
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  for (int b = 0; b < 256; ++b) {
    texts.push_back(fmt::format("<0x{:02X}>", b));
    types.push_back(6);
  }
  for (const char* word : {"▁", "a", "b", "▁a", "ab", "▁ab"}) {
    texts.emplace_back(word);
    types.push_back(1);
  }
  GgufVocab vocab;
  vocab.model = "llama";
  vocab.tokens.assign(texts.begin(), texts.end());
  vocab.types = types;
  for (size_t i = 0; i < texts.size(); ++i) {
    vocab.scores.push_back(-static_cast<float>(i));
  }
  vocab.bos = 1;
  vocab.eos = 2;
  vocab.unk = 0;
  return value_or_throw(Tokenizer::from_gguf(vocab, "test"));
}

std::string stream(const Tokenizer& tokenizer,
                   const std::vector<TokenId>& ids,
                   Detokenizer::Options options) {
  Detokenizer detokenizer(tokenizer, options);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_EQ(utf8_incomplete_tail(piece), 0U);
    std::string again;
    append_utf8_lossy(piece, again);
    EXPECT_EQ(again, piece) << "a piece must be whole characters";
    text += piece;
  }
  return text + detokenizer.flush();
}

TEST(Detokenizer, HoldsHalfACharacter) {
  const Tokenizer tokenizer = byte_tokenizer();
  Detokenizer d(tokenizer, {});
  EXPECT_EQ(d.push(0xE4), "");
  EXPECT_EQ(d.push(0xB8), "");
  EXPECT_EQ(d.push(0xAD), "中");
  EXPECT_EQ(d.push(0xF0), "");
  EXPECT_EQ(d.push('a'), "\uFFFDa");
  EXPECT_EQ(d.push(0xC3), "");
  EXPECT_EQ(d.push(256), "");  // special, skipped
  EXPECT_EQ(d.flush(), "\uFFFD");
}

TEST(Detokenizer, RandomBytesEqualDecode) {
  const Tokenizer tokenizer = byte_tokenizer();
  std::mt19937 rng(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<TokenId> ids(rng() % 40);
    for (TokenId& id : ids) {
      const unsigned pick =
          rng();  // many lead and continuation bytes, so that valid characters occur
      id = static_cast<TokenId>(pick % 3 == 0   ? pick / 3 % 257
                                : pick % 3 == 1 ? 0x80 + pick / 3 % 64
                                                : 0xC2 + pick / 3 % 51);
    }
    for (const bool skip : {true, false}) {
      EXPECT_EQ(stream(tokenizer, ids, {skip, false}), tokenizer.decode(ids, skip));
    }
  }
}

TEST(Detokenizer, RandomTokensOfTheModelEqualDecode) {
  WR_NEED_SMOLLM2();
  const Tokenizer& tokenizer = test::smollm2()->tokenizer;
  std::mt19937 rng(2);
  for (int round = 0; round < 200; ++round) {
    std::vector<TokenId> ids(rng() % 60);
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(rng() % static_cast<unsigned>(tokenizer.vocab_size()));
    }
    EXPECT_EQ(stream(tokenizer, ids, {}), tokenizer.decode(ids, true));
  }
}

TEST(Detokenizer, TheSpaceThatEncodingAddedGoesOnlyAtTheStart) {
  const Tokenizer tokenizer = spm_tokenizer();
  const auto ids = tokenizer.encode("ab a", true);
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 264, 262}));
  EXPECT_EQ(tokenizer.decode(ids, true), "ab a");
  EXPECT_EQ(stream(tokenizer, ids, {}), "ab a");
  EXPECT_EQ(stream(tokenizer, ids, {true, true}), " ab a");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" ab", false), true), " ab");
}

// WordPiece puts a space before each token, special ones included.
TEST(Detokenizer, SpacesBetweenSpecialTokensMayBeLeftOut) {
  const nlohmann::json special = {{"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", true}};
  nlohmann::json json = {{"version", "1.0"},
                         {"added_tokens", nlohmann::json::array()},
                         {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}}},
                         {"model",
                          {{"type", "WordPiece"},
                           {"unk_token", "[UNK]"},
                           {"continuing_subword_prefix", "##"},
                           {"max_input_chars_per_word", 100},
                           {"vocab", {{"[UNK]", 0}, {"[A]", 1}, {"[B]", 2}, {"word", 3}}}}}};
  for (const auto& [id, text] : {std::pair(1, "[A]"), std::pair(2, "[B]")}) {
    nlohmann::json token = special;
    token["id"] = id;
    token["content"] = text;
    json["added_tokens"].push_back(token);
  }
  const Tokenizer tokenizer = value_or_throw(Tokenizer::from_json(json.dump(), "test"));
  const auto decode = [&](bool spaces) {
    Detokenizer detokenizer(
        tokenizer, {.skip_special = false, .continues = true, .spaces_between_special = spaces});
    std::string text;
    for (const TokenId id : {3, 1, 2, 1, 3, 2}) {
      text += detokenizer.push(id);
    }
    return text + detokenizer.flush();
  };
  EXPECT_EQ(decode(true), " word [A] [B] [A] word [B]");
  EXPECT_EQ(decode(false), " word [A][B][A] word [B]");
}

}  // namespace
}  // namespace warprow
