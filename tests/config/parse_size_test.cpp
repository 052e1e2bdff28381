// SPDX-License-Identifier: Apache-2.0
#include "config/parse_size.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(ParseSize, ReadsWhatPeopleWrite) {
  const std::pair<const char*, int64_t> cases[] = {
      {"0", 0},
      {"4096", 4096},
      {"32k", 32'000},
      {"32K", 32'768},
      {"25.6k", 25'600},
      {"2m", 2'000'000},
      {"2M", 2'097'152},
      {"1g", 1'000'000'000},
      {"1T", 1'099'511'627'776},
      {"24MiB", 25'165'824},
      {"24Mi", 25'165'824},
      {"4GiB", 4'294'967'296},
      {"1.5GiB", 1'610'612'736},
      {"0.3GiB", 322'122'547},
      {"4GB", 4'000'000'000},
      {"64KiB", 65'536},
      {"64kB", 64'000},
      {"512B", 512},
      {"9223372036854775807", INT64_MAX},
      {"1.00000000000000000000000001k", 1000},
  };
  for (const auto& [text, value] : cases) {
    const auto parsed = parse_size(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().message;
    EXPECT_EQ(*parsed, value) << text;
  }
}

TEST(ParseSize, RefusesTheRestInOneLine) {
  for (const char* text : {"",
                           " 1",
                           "1 ",
                           "-1",
                           "+1",
                           "1.5",
                           "1.5B",
                           "1.",
                           ".5k",
                           "k",
                           "1kk",
                           "1KIB",
                           "0x10",
                           "1e3",
                           "1,5k",
                           "1_000"}) {
    const auto parsed = parse_size(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find(std::string("'") + text + "'"), std::string::npos);
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  }
}

TEST(ParseSize, RefusesWhatDoesNotFit) {
  for (const char* text : {"9223372036854775808",
                           "9223372036854775807k",
                           "8388608T",
                           "99999999999999999999999999999999999999999999"}) {
    const auto parsed = parse_size(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_NE(parsed.error().message.find("too large"), std::string::npos);
  }
}

}  // namespace
}  // namespace warprow
