// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_options.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

std::string allowed_headers(std::string_view wanted) {
  const CorsOptions options{.origins = {"https://a.example"}};
  for (const auto& [name, value] : cors_headers(options, "https://a.example", wanted)) {
    if (name == "Access-Control-Allow-Headers") {
      return value;
    }
  }
  return "none";
}

TEST(CorsHeaders, APreflightMaySendWhatItAsksFor) {
  const std::string wanted = "authorization, content-type,x-stainless-retry-count";
  EXPECT_EQ(allowed_headers(wanted), wanted);
  for (const std::string& odd :
       {std::string(), std::string("a\r\nX-Evil: 1"), std::string("*"), std::string(2049, 'a')}) {
    EXPECT_EQ(allowed_headers(odd), "Authorization, Content-Type, X-Request-Id") << odd;
  }
  EXPECT_THAT(cors_headers({.origins = {"https://a.example"}}, "https://b.example", wanted),
              ::testing::IsEmpty());
}

}  // namespace
}  // namespace warprow
