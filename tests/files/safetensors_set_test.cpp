// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_set.h"

#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::SafetensorsWriter;
using ::testing::HasSubstr;

const std::vector<float> kOne{1.0F};
const char* const kIndex = "model.safetensors.index.json";

TEST(SafetensorsSet, OpensASingleFile) {
  const test::TempDir dir;
  dir.write("model.safetensors", SafetensorsWriter().add_f32("a", {1}, kOne).bytes());
  auto opened = SafetensorsSet::open(dir.path().string());
  ASSERT_TRUE(opened) << opened.error().message;
  const SafetensorsSet set = *std::move(opened);
  ASSERT_EQ(set.entries().size(), 1U);
  EXPECT_EQ(set.entries()[0].tensor->name, "a");
}

TEST(SafetensorsSet, OpensShards) {
  const test::TempDir dir;
  dir.write("s1.safetensors",
            SafetensorsWriter().add_f32("a", {1}, kOne).add_f32("b", {1}, kOne).bytes());
  dir.write("s2.safetensors", SafetensorsWriter().add_f32("c", {1}, kOne).bytes());
  dir.write(kIndex,
            R"({"weight_map":{"c":"s2.safetensors","a":"s1.safetensors","b":"s1.safetensors"}})");
  const auto set = SafetensorsSet::open(dir.path().string());
  ASSERT_TRUE(set) << set.error().message;
  ASSERT_EQ(set->files().size(), 2U);
  ASSERT_EQ(set->entries().size(), 3U);
  for (const SafetensorsSet::Entry& entry : set->entries()) {
    EXPECT_EQ(set->files()[static_cast<size_t>(entry.file)].find(entry.tensor->name), entry.tensor);
  }
}

TEST(SafetensorsSet, ExplainsWhatIsWrong) {
  const test::TempDir dir;
  const auto error = [&] { return SafetensorsSet::open(dir.path().string()).error(); };
  EXPECT_EQ(error().code, ErrorCode::kNotFound);
  EXPECT_THAT(error().message, HasSubstr("holds neither model.safetensors nor"));
  dir.write(kIndex, "{}");
  EXPECT_THAT(error().message, HasSubstr("no object 'weight_map'"));
  dir.write(kIndex, R"({"weight_map":{}})");
  EXPECT_THAT(error().message, HasSubstr("names no tensor"));
  for (const std::string name : {"../x", "/etc/passwd", "", ".."}) {
    dir.write(kIndex, R"({"weight_map":{"a":")" + name + R"("}})");
    EXPECT_THAT(error().message, HasSubstr("not the name of a file beside it"));
  }
  dir.write(kIndex, R"({"weight_map":{"a":1}})");
  EXPECT_THAT(error().message, HasSubstr("not the name of a file beside it"));
  dir.write(kIndex, R"({"weight_map":{"a":"s.safetensors"}})");
  EXPECT_EQ(error().code, ErrorCode::kNotFound);
  EXPECT_THAT(error().message, HasSubstr("s.safetensors"));
  dir.write("s.safetensors", SafetensorsWriter().add_f32("b", {1}, kOne).bytes());
  EXPECT_THAT(error().message, HasSubstr("has no tensor 'a'"));
}

}  // namespace
}  // namespace warprow
