// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// The stderr output of logging `message`. The previous logger is restored afterwards.
std::string logged(std::string_view level, std::string_view format, std::string_view message) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(init_logging(level, format));
  WR_LOG_WARN("{}", message);
  spdlog::default_logger()->flush();
  spdlog::set_default_logger(before);
  return ::testing::internal::GetCapturedStderr();
}

// A line of the JSON form, from the level on. The time comes before it.
std::string after_time(std::string_view message) {
  const std::string line = logged("info", "json", message);
  const size_t level = line.find(R"(,"level")");
  EXPECT_EQ(line.substr(0, 7), R"({"ts":")");
  return level == std::string::npos ? line : line.substr(level);
}

TEST(Log, AJsonLineHoldsAnyMessage) {
  EXPECT_EQ(after_time("plain"),
            R"(,"level":"warning","message":"plain"})"
            "\n");
  EXPECT_EQ(after_time("\"a\\b\"\n\t\x01\x7F é 中 {}%v"),
            R"(,"level":"warning","message":"\"a\\b\"\u000a\u0009\u0001)"
            "\x7F é 中 {}%v\"}\n");
  EXPECT_EQ(after_time("not UTF-8: \xFF\xC3"),
            ",\"level\":\"warning\",\"message\":\"not UTF-8: \uFFFD\uFFFD\"}\n");
}

TEST(Log, TextIsWrittenAsItIs) {
  const std::string line = logged("info", "text", "say \"hi\"");
  EXPECT_EQ(line.substr(line.find(' ', 2) + 1), "say \"hi\"\n") << line;
}

TEST(Log, TheLevelAndItsNameCount) {
  EXPECT_EQ(logged("error", "json", "too little"), "");
  EXPECT_FALSE(init_logging("loud", "json"));
  EXPECT_FALSE(init_logging("info", "xml"));
}

}  // namespace
}  // namespace warprow
