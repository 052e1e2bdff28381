// SPDX-License-Identifier: Apache-2.0
#include "files/gguf_set.h"

#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::GgufWriter;
using ::testing::HasSubstr;

// Part `number` of `count`, counted from 0, with one tensor of this name.
GgufWriter part(int number, int count, const std::string& tensor) {
  GgufWriter out;
  out.add("split.no", static_cast<uint16_t>(number))
      .add("split.count", static_cast<uint16_t>(count));
  out.add("split.tensors.count", int32_t{2});
  if (!tensor.empty()) {
    out.add_f32(tensor, {2}, std::vector<float>{1.0F, 2.0F});
  }
  return out;
}

TEST(GgufPart, Names) {
  const auto parts = [](const char* file) {
    const std::optional<GgufPart> part = parse_gguf_part(file);
    return part
               ? part->stem + "|" + std::to_string(part->number) + "|" + std::to_string(part->count)
               : "none";
  };
  EXPECT_EQ(parts("a/m-Q8_0-00002-of-00012.gguf"), "a/m-Q8_0|2|12");
  for (const char* file : {"m.gguf",
                           "-00001-of-00002.gguf",
                           "m-00003-of-00002.gguf",
                           "m-00000-of-00002.gguf",
                           "m-0001-of-00002.gguf",
                           "m-00001-of-00002.bin",
                           "m_00001-of-00002.gguf",
                           "m-00001-in-00002.gguf",
                           "m--0001-of-00002.gguf"}) {
    EXPECT_EQ(parts(file), "none") << file;
  }
  EXPECT_EQ(gguf_part_name({"m", 1, 3}, 2), "m-00002-of-00003.gguf");
  EXPECT_TRUE(is_later_gguf_part("m-00002-of-00003.gguf"));
  EXPECT_FALSE(is_later_gguf_part("m-00001-of-00003.gguf"));
}

TEST(GgufSet, OneFileIsASet) {
  const test::TempDir dir;
  const auto set = GgufSet::open(dir.write("m.gguf", part(0, 1, "a").bytes()));
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_EQ(set->files().size(), 1U);
}

TEST(GgufSet, PartsInOrder) {
  const test::TempDir dir;
  const std::string first = dir.write("m-00001-of-00003.gguf", part(0, 3, "").bytes());
  dir.write("m-00003-of-00003.gguf", part(2, 3, "b").bytes());
  const auto incomplete = GgufSet::open(first);
  ASSERT_FALSE(incomplete);
  EXPECT_EQ(incomplete.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(incomplete.error().message, HasSubstr("m-00002-of-00003.gguf"));
  const std::string second = dir.write("m-00002-of-00003.gguf", part(1, 3, "a").bytes());
  const auto set = GgufSet::open(first);
  ASSERT_TRUE(set) << set.error().message;
  ASSERT_EQ(set->files().size(), 3U);
  EXPECT_NE(set->files()[1].find_tensor("a"), nullptr);
  EXPECT_NE(set->files()[2].find_tensor("b"), nullptr);
  EXPECT_THAT(GgufSet::open(second).error().message, HasSubstr("part 2 of 3: name the first one"));
}

TEST(GgufSet, PartsThatDoNotBelongTogether) {
  const test::TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, "a").bytes());
  const auto refusal = [&](const GgufWriter& second) {
    dir.write("m-00002-of-00002.gguf", second.bytes());
    const auto set = GgufSet::open(first);
    return set ? "" : set.error().message;
  };
  EXPECT_EQ(refusal(part(1, 2, "b")), "");
  EXPECT_THAT(refusal(part(1, 2, "a")), HasSubstr("tensor 'a' is in a part before it too"));
  EXPECT_THAT(refusal(part(1, 2, "")), HasSubstr("hold 1 tensors, not split.tensors.count"));
  EXPECT_THAT(refusal(part(0, 2, "b")), HasSubstr("does not say that it is part 2 of 2"));
  EXPECT_THAT(refusal(GgufWriter().add_f32("b", {1}, std::vector<float>{1.0F})),
              HasSubstr("split.no"));
  const auto renamed = GgufSet::open(dir.write("m.gguf", part(0, 2, "a").bytes()));
  EXPECT_EQ(renamed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(renamed.error().message, HasSubstr("model-00001-of-00002.gguf"));
}

}  // namespace
}  // namespace warprow
