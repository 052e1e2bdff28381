// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::string lossy(std::string_view bytes) {
  std::string out;
  append_utf8_lossy(bytes, out);
  return out;
}

TEST(Utf8, IllFormedPartsBecomeOneMarkEach) {
  const std::string mark = "\uFFFD";
  EXPECT_EQ(lossy("aé中😀"), "aé中😀");
  EXPECT_EQ(lossy("\xFF"), mark);
  EXPECT_EQ(lossy("\xC0\xAF"), mark + mark);                        // overlong
  EXPECT_EQ(lossy("\xED\xA0\x80"), mark + mark + mark);             // surrogate
  EXPECT_EQ(lossy("\xF4\x90\x80\x80"), mark + mark + mark + mark);  // above U+10FFFF
  EXPECT_EQ(lossy("\xE4\xB8"
                  "a"),
            mark + "a");  // a truncated character is one mark
  EXPECT_EQ(lossy("\xF0\x9F\x98"
                  "\xE4"),
            mark + mark);
}

TEST(Utf8, TailIsWhatMoreBytesCouldComplete) {
  EXPECT_EQ(utf8_incomplete_tail(""), 0U);
  EXPECT_EQ(utf8_incomplete_tail("a"), 0U);
  EXPECT_EQ(utf8_incomplete_tail("é"), 0U);
  EXPECT_EQ(utf8_incomplete_tail("a\xC3"), 1U);
  EXPECT_EQ(utf8_incomplete_tail("\xE4\xB8"), 2U);
  EXPECT_EQ(utf8_incomplete_tail("\xF0\x9F\x98"), 3U);
  EXPECT_EQ(utf8_incomplete_tail("\xE0\x80"), 0U);  // overlong: no byte can complete it
  EXPECT_EQ(utf8_incomplete_tail("\x80\x80\x80"), 0U);
  EXPECT_EQ(utf8_incomplete_tail("\xF5"), 0U);
}

}  // namespace
}  // namespace warprow
