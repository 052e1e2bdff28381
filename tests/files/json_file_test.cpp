// SPDX-License-Identifier: Apache-2.0
#include "files/json_file.h"

#include "tests/support/temp_dir.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::string error_of(std::string_view text) {
  const auto value = parse_json(text, "c.json");
  if (value) {
    return "";
  }
  EXPECT_EQ(value.error().code, ErrorCode::kCorrupt);
  return value.error().message;
}

TEST(JsonFile, ReadsAFile) {
  const test::TempDir dir;
  const auto value = read_json_file(dir.write("config.json", R"({"a": [1, 2.5, "x"], "b": null})"));
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ((*value)["a"][1], 2.5);
  EXPECT_EQ(read_json_file((dir.path() / "absent").string()).error().code, ErrorCode::kNotFound);
}

TEST(JsonFile, SaysWhereTheMistakeIs) {
  EXPECT_EQ(error_of("{\n  \"a\": tru,\n}"), "'c.json': not valid JSON at line 2 column 11");
  EXPECT_EQ(error_of("{\"a\": 1"), "'c.json': the JSON ends early, at line 1 column 8");
  EXPECT_EQ(error_of(""), "'c.json': the JSON ends early, at line 1 column 1");
  EXPECT_EQ(error_of("{} x"), "'c.json': not valid JSON at line 1 column 4");
  EXPECT_NE(error_of("[\"\xff\"]"), "");
  EXPECT_EQ(error_of("[1e999]"), "'c.json': the JSON holds a number out of range");
}

TEST(JsonFile, RefusesDepthBombs) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(error_of(nested(kMaxJsonDepth)), "");
  EXPECT_EQ(error_of(nested(kMaxJsonDepth + 1)), "'c.json': the JSON nests deeper than 64");
  EXPECT_EQ(error_of(nested(1'000'000)), "'c.json': the JSON nests deeper than 64");
  EXPECT_NE(error_of(std::string(1'000'000, '[')), "");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) {
    objects += "{\"a\":";
  }
  EXPECT_NE(error_of(objects), "");
}

TEST(JsonFile, ReportsRepeatedOuterKeys) {
  std::string repeated = "stale";
  EXPECT_TRUE(parse_json(R"({"a": {"x": 1, "x": 2}, "b": 1})", "c.json", &repeated));
  EXPECT_EQ(repeated, "");
  EXPECT_TRUE(parse_json(R"({"a": 1, "b": 2, "b": 3, "a": 4})", "c.json", &repeated));
  EXPECT_EQ(repeated, "b");
}

}  // namespace
}  // namespace warprow
