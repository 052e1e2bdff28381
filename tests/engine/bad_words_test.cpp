// SPDX-License-Identifier: Apache-2.0
#include "engine/bad_words.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

// A byte-level vocabulary with a token for " a" and one for " b".
const char* const kJson = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "Ġa": 4, "Ġb": 5}, "merges": ["Ġ a", "Ġ b"]}})";

using Words = std::vector<std::vector<TokenId>>;

TEST(BadWords, AreTakenWithASpaceInFrontWhereThatIsAnotherToken) {
  const Tokenizer tokenizer = value_or_throw(Tokenizer::from_json(kJson, "tokenizer.json"));
  EXPECT_EQ(encode_bad_words({"a"}, tokenizer), (Words{{0}, {4}}));
  EXPECT_EQ(encode_bad_words({" a"}, tokenizer), (Words{{0}, {4}}))
      << "the leading space is dropped";
  EXPECT_EQ(encode_bad_words({"a b"}, tokenizer), (Words{{0, 5}, {4, 5}}));
  EXPECT_EQ(encode_bad_words({"c"}, tokenizer), (Words{{2}}))
      << "the space would be a token of its own";
  EXPECT_EQ(encode_bad_words({"ca", "b"}, tokenizer), (Words{{2, 0}, {1}, {5}}));
  EXPECT_EQ(encode_bad_words({}, tokenizer), Words{});
}

}  // namespace
}  // namespace warprow
