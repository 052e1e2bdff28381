// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include "tests/text/text_test_support.h"

#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// A byte-level tokenizer.json with two merges, one special token and BOS before every text.
const char* const kByteLevelJson = R"({
  "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
  "padding": null,
  "added_tokens": [{"id": 8, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "Ã": 5, "©": 6, "ÿ": 7},
            "merges": ["a b", "Ġ ab"]}})";

// A Llama-like tokenizer: the space mark, byte fallback, one leading space stripped.
const char* const kFallbackJson = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                 {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": null, "post_processor": null,
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
              {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<0xC3>": 4, "<0xA9>": 5, "<0xFF>": 6},
            "merges": ["▁ a"]}})";

Tokenizer from_json(const char* json) {
  return value_or_throw(Tokenizer::from_json(json, "tokenizer.json"));
}
using Ids = std::vector<TokenId>;

TEST(TokenizerJson, ByteLevel) {
  const Tokenizer t = from_json(kByteLevelJson);
  EXPECT_EQ(t.vocab_size(), 9);
  EXPECT_EQ(t.encode("ab ab", true), (Ids{8, 3, 4}))
      << "with BOS, and not truncated to the file's max_length";
  EXPECT_EQ(t.encode("ab<s>ab", false), (Ids{3, 8, 3}));
  EXPECT_EQ(t.encode("é", false), (Ids{5, 6}));
  EXPECT_EQ(t.decode(Ids{8, 3, 4}, true), "ab ab");
  EXPECT_EQ(t.decode(Ids{8, 3, 4}, false), "<s>ab ab");
  EXPECT_TRUE(t.is_special(8));
  EXPECT_EQ(t.token_text(9), "") << "no such token";
  EXPECT_EQ(t.token_text(-1), "");
  EXPECT_EQ(t.token_text(4), "Ġab");
  EXPECT_EQ(t.token_bytes(4), " ab");
  EXPECT_EQ(t.token_bytes(5), "\xC3");
  EXPECT_EQ(t.find("Ġab"), 4);
  EXPECT_EQ(t.find("zz"), std::nullopt);
}

TEST(TokenizerJson, BytesThatAreNoText) {
  const Tokenizer t = from_json(kByteLevelJson);
  EXPECT_EQ(t.encode("ab\xFF ab", true), (Ids{8, 3, 7, 4}));
  EXPECT_EQ(t.encode("\xC3", false), Ids{5});
  const Tokenizer f = from_json(kFallbackJson);
  EXPECT_EQ(f.encode("a\xFF", false), (Ids{3, 6}));
}

TEST(TokenizerJson, ByteFallback) {
  const Tokenizer t = from_json(kFallbackJson);
  EXPECT_EQ(t.encode("a é", false), (Ids{3, 1, 4, 5}));
  EXPECT_EQ(t.decode(Ids{3, 1, 4, 5}, true), "a é");
  EXPECT_EQ(t.token_bytes(4), "\xC3");
  EXPECT_EQ(t.token_bytes(3), " a");
  EXPECT_TRUE(t.strips_leading_space());
}

TEST(TokenizerJson, NoTokenizerIsAnError) {
  const auto t = Tokenizer::from_json("{\"model\": 3}", "x/tokenizer.json");
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(t.error().message.find("x/tokenizer.json"), std::string::npos);
}

GgufVocab tiny_vocab() {
  GgufVocab v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  v.tokens = {"a", "b", "ab", "<e>"};
  v.merges = {"a b"};
  v.types = {1, 1, 1, 3};
  v.bos = 3;
  v.eos = 3;
  return v;
}

TEST(TokenizerGguf, TheMetadataSaysWhatGoesAround) {
  GgufVocab v = tiny_vocab();
  EXPECT_EQ(value_or_throw(Tokenizer::from_gguf(v, "f")).encode("ab", true), (Ids{2}));
  v.add_bos = true;
  v.add_eos = true;
  const Tokenizer t = value_or_throw(Tokenizer::from_gguf(v, "f"));
  EXPECT_EQ(t.encode("ab", true), (Ids{3, 2, 3}));
  EXPECT_EQ(t.encode("ab", false), (Ids{2}));
  EXPECT_EQ(t.encode("", true), (Ids{3, 3}));
  v = tiny_vocab();
  v.pre = "llama-bpe";  // Llama 3 adds BOS by default
  EXPECT_EQ(value_or_throw(Tokenizer::from_gguf(v, "f")).encode("ab", true), (Ids{3, 2}));
}

TEST(TokenizerGguf, RefusalsNameTheValue) {
  const auto message = [](const GgufVocab& v) {
    const auto t = Tokenizer::from_gguf(v, "m.gguf");
    return t ? std::string() : t.error().message;
  };
  GgufVocab v = tiny_vocab();
  v.pre = "no-such-pre";
  EXPECT_NE(message(v).find("m.gguf: pre-tokenizer \"no-such-pre\""), std::string::npos)
      << message(v);
  v = tiny_vocab();
  v.model = "rwkv";
  EXPECT_NE(message(v).find("\"rwkv\""), std::string::npos);
  v = tiny_vocab();
  v.merges = {"ab"};
  EXPECT_NE(message(v).find("merge 0"), std::string::npos);
  v = tiny_vocab();
  v.types = {1};
  EXPECT_NE(message(v).find("token_type"), std::string::npos);
  v = tiny_vocab();
  v.bos = 4;
  EXPECT_NE(message(v).find("bos_token_id"), std::string::npos);
}

// The text without bytes that have no token in the vocabulary.
std::string known_bytes(const Tokenizer& t, std::string_view text) {
  std::string known;
  for (const char c : text) {
    if (!t.encode({&c, 1}, false).empty()) {
      known += c;
    }
  }
  return known;
}

std::string random_text(std::mt19937& rng, bool valid) {
  std::string s;
  const int len = static_cast<int>(rng() % 40);
  for (int i = 0; i < len; ++i) {
    uint32_t c = 0;
    switch (rng() % 6) {
      case 0:
        c = 0x20;
        break;
      case 1:
        c = 0x30 + rng() % 10;
        break;
      case 2:
        c = 0x61 + rng() % 26;
        break;
      case 3:
        c = rng() % 0x80;
        break;
      case 4:
        c = rng() % 0xD800;
        break;
      default:
        c = 0xE000 + rng() % (0x110000 - 0xE000);
        break;
    }
    if (!valid && rng() % 4 == 0) {
      s += static_cast<char>(rng() % 256);
    } else if (c < 0x80) {
      s += static_cast<char>(c);
    } else if (c < 0x800) {
      s += {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
    } else if (c < 0x10000) {
      s += {static_cast<char>(0xE0 | (c >> 12)),
            static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
    } else {
      s += {static_cast<char>(0xF0 | (c >> 18)),
            static_cast<char>(0x80 | ((c >> 12) & 0x3F)),
            static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
    }
  }
  return s;
}

// Writes a GGUF file's vocabulary as a tokenizer.json with this pre-tokenizer.
std::string as_tokenizer_json(const GgufVocab& v, const nlohmann::json& pre_tokenizer) {
  nlohmann::json vocab = nlohmann::json::object();
  nlohmann::json added = nlohmann::json::array();
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    vocab[std::string(v.tokens[id])] = id;
    if (v.types[id] == 3) {
      added.push_back({{"id", id},
                       {"content", v.tokens[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  return nlohmann::json{{"version", "1.0"},
                        {"added_tokens", added},
                        {"pre_tokenizer", pre_tokenizer},
                        {"decoder", byte_level},
                        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", v.merges}}}}
      .dump();
}

// Compares our byte-level BPE with the tokenizers crate, on text that neither was tuned on.
TEST(TokenizerGguf, EqualsTheTokenizersCrate) {
  WR_NEED_SMOLLM2();
  const GgufFile file = value_or_throw(GgufFile::open(test::smollm2_path()));
  const nlohmann::json pre = {{"type", "Sequence"},
                              {"pretokenizers",
                               {{{"type", "Digits"}, {"individual_digits", true}},
                                {{"type", "ByteLevel"},
                                 {"add_prefix_space", false},
                                 {"trim_offsets", true},
                                 {"use_regex", true}}}}};
  const Tokenizer theirs =
      from_json(as_tokenizer_json(value_or_throw(read_gguf_vocab(file)), pre).c_str());
  const Tokenizer& ours = test::smollm2()->tokenizer;
  std::mt19937 rng(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text = random_text(rng, round % 4 != 0);
    if (round % 5 == 0) {
      text.insert(text.size() / 2, "<|im_end|>");
    }
    ASSERT_EQ(ours.encode(text, true), theirs.encode(text, true)) << text;
    const std::vector<TokenId> ids = ours.encode(text, false);
    ASSERT_EQ(ours.decode(ids, true), theirs.decode(ids, true));
  }
  for (TokenId id = 0; id < ours.vocab_size(); ++id) {
    ASSERT_EQ(ours.token_text(id), theirs.token_text(id));
    ASSERT_EQ(ours.token_bytes(id), theirs.token_bytes(id));
    ASSERT_EQ(ours.is_special(id), theirs.is_special(id));
  }
}

TEST(TokenizerGguf, RandomTextComesBack) {
  WR_NEED_SMOLLM2();
  const Tokenizer& t = test::smollm2()->tokenizer;
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random_text(rng, true);
    if (known_bytes(t, text) == text) {
      ASSERT_EQ(t.decode(t.encode(text, false), false), text);
    }
  }
}

TEST(TokenizerGguf, RandomBytesComeBack) {
  WR_NEED_SMOLLM2();
  const Tokenizer& t = test::smollm2()->tokenizer;
  std::mt19937 rng(4);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random_text(rng, false);
    std::string bytes;
    for (const TokenId id : t.encode(text, false)) {
      bytes += t.token_bytes(id);
    }
    ASSERT_EQ(bytes, known_bytes(t, text));
  }
}

TEST(TokenizerGguf, LongTextTakesLinearTime) {
  WR_NEED_SMOLLM2();
  const Tokenizer& t = test::smollm2()->tokenizer;
  for (const std::string unit : {"a", " ", "7", "中", "\n", "!"}) {
    std::string text;
    while (text.size() < 100'000) {
      text += unit;
    }
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(t.decode(t.encode(text, false), false), text);
    const auto spent = std::chrono::steady_clock::now() - start;
    EXPECT_LT(spent, std::chrono::seconds(10)) << unit;  // quadratic time would take minutes
  }
}

TEST(TokenizerGguf, ThreadsEncodeAtOnce) {
  WR_NEED_SMOLLM2();
  const Tokenizer& t = test::smollm2()->tokenizer;
  const std::string text = "The capital of France is Paris, 1234.";
  const auto expected = t.encode(text, false);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        wrong[static_cast<size_t>(i)] += t.encode(text, false) == expected ? 0 : 1;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace warprow
