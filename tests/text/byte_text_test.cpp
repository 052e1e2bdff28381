// SPDX-License-Identifier: Apache-2.0
#include "text/byte_text.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(ByteText, ATokenIsAByte) {
  const auto text = value_or_throw(make_byte_text());
  EXPECT_EQ(text->tokenizer.vocab_size(), 256);
  EXPECT_EQ(text->tokenizer.encode("A \n\xc3\xa9", true),
            (std::vector<TokenId>{0x41, 0x20, 0x0a, 0xc3, 0xa9}));
  const std::vector<TokenId> ids{0x41, 151000, 0x20, 0xc3, 0xa9};
  EXPECT_EQ(text->tokenizer.decode(ids, true), "A \xc3\xa9");
  EXPECT_TRUE(text->eos.empty());
  EXPECT_FALSE(text->chat_template);
}

}  // namespace
}  // namespace warprow
