// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/result_file.h"

#include "tests/support/temp_dir.h"

#include <fstream>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ResultFileTest : public ::testing::Test {
 protected:
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  [[nodiscard]] std::string text() const {
    std::stringstream out;
    out << std::ifstream(path_).rdbuf();
    return out.str();
  }
  [[nodiscard]] Result<ResultFile> open() const {
    return ResultFile::open(path_, "{result ", [](const std::string& line) { return line; });
  }

  test::TempDir dir_;
  std::string path_ = (dir_.path() / "results.jsonl").string();
};

TEST_F(ResultFileTest, ACutLineStaysUntilItIsDropped) {
  const std::string cut = "{result 1}\n{result 2}\n{resu";
  write(cut);
  Result<ResultFile> file = open();
  ASSERT_TRUE(file);
  EXPECT_THAT(file->keys(), ElementsAre("{result 1}", "{result 2}"));
  EXPECT_EQ(text(), cut);
  EXPECT_TRUE(file->drop_cut_line());
  EXPECT_EQ(text(), "{result 1}\n{result 2}\n");
}

TEST_F(ResultFileTest, NothingIsDroppedOfAWholeFile) {
  for (const std::string whole : {"", "{result 1}\n"}) {
    write(whole);
    Result<ResultFile> file = open();
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->drop_cut_line());
    EXPECT_EQ(text(), whole);
  }
}

TEST_F(ResultFileTest, WhatIsNoResultIsRefused) {
  for (const std::string other : {"x", "{request 1}\n{request 2}", "{result 1}\nx\n"}) {
    write(other);
    const Result<ResultFile> file = open();
    ASSERT_FALSE(file) << other;
    EXPECT_THAT(file.error().message, HasSubstr("is no result"));
    EXPECT_EQ(text(), other);
  }
}

}  // namespace
}  // namespace warprow
