// SPDX-License-Identifier: Apache-2.0
#include "server/api_keys.h"

#include "tests/support/temp_dir.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(KeyFile, AKeyALine) {
  const test::TempDir folder;
  const std::string path = folder.write("keys", "# ours\none\r\n\ntwo");
  EXPECT_THAT(read_key_file(path)->keys, ElementsAre("one", "two"));
  for (const auto& [text, words] : {std::pair("", "no key in"),
                                    std::pair("# none", "no key in"),
                                    std::pair("a b", "visible ASCII")}) {
    EXPECT_THAT(read_key_file(folder.write("keys", text)).error().message, HasSubstr(words));
  }
  EXPECT_EQ(read_key_file(path + "x").error().code, ErrorCode::kNotFound);
}

TEST(ApiKeys, FilesAreReadAgainAllOrNone) {
  const test::TempDir folder;
  const std::string first = folder.write("first", "a1");
  const std::string second = folder.write("second", "b1");
  ApiKeys keys({"fixed"}, {*read_key_file(first), *read_key_file(second)});
  const auto those_that_open = [&] {
    std::vector<std::string> out;
    for (const char* key : {"fixed", "a1", "a2", "b1", "b2", ""}) {
      if (keys.has(key)) {
        out.emplace_back(key);
      }
    }
    return out;
  };
  EXPECT_THAT(those_that_open(), ElementsAre("fixed", "a1", "b1"));
  folder.write("first", "a2");
  EXPECT_THAT(those_that_open(), ElementsAre("fixed", "a1", "b1"));
  std::filesystem::remove(second);
  EXPECT_THAT(keys.read_again().error().message, HasSubstr(second));
  EXPECT_THAT(those_that_open(), ElementsAre("fixed", "a1", "b1"));
  folder.write("second", "b2");
  EXPECT_TRUE(keys.read_again());
  EXPECT_THAT(those_that_open(), ElementsAre("fixed", "a2", "b2"));
}

TEST(ApiKeys, NoneAreNeededWithoutAny) {
  EXPECT_TRUE(ApiKeys({}, {}).empty());
  EXPECT_FALSE(ApiKeys({"a"}, {}).empty());
}

TEST(ApiKeys, APipeIsReadOnce) {
  ApiKeys keys({}, {KeyFile{.path = "/dev/null", .keys = {"a"}}});
  EXPECT_FALSE(keys.empty());
  EXPECT_TRUE(keys.paths().empty());
  EXPECT_TRUE(keys.read_again());
  EXPECT_TRUE(keys.has("a"));
}

}  // namespace
}  // namespace warprow
