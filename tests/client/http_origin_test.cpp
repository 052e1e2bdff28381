// SPDX-License-Identifier: Apache-2.0
#include "client/http_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(HttpOrigin, FormsOfAUrl) {
  const auto url = [](const char* text) { return parse_origin(text)->url(); };
  EXPECT_EQ(url("http://127.0.0.1:8000"), "http://127.0.0.1:8000");
  EXPECT_EQ(url("http://127.0.0.1:8000/v1/"), "http://127.0.0.1:8000");
  EXPECT_EQ(url("http://gpu7/llm/v1"), "http://gpu7:80/llm");
  EXPECT_EQ(url("http://gpu7/llm/"), "http://gpu7:80/llm");
  EXPECT_EQ(url("https://gpu7/v1"), "https://gpu7:443");
  EXPECT_EQ(url("https://[::1]:9/x"), "https://[::1]:9/x");
  EXPECT_EQ(url("localhost"), "http://localhost:8000");
  EXPECT_EQ(url("localhost:9"), "http://localhost:9");
  EXPECT_EQ(url("[::1]:9"), "http://[::1]:9");
  EXPECT_EQ(url("http://[::1]"), "http://[::1]:80");
  EXPECT_EQ(parse_origin("http://[::1]:8000/x")->authority(), "[::1]:8000");
  EXPECT_EQ(parse_origin("gpu7")->authority(), "gpu7:8000");
}

TEST(HttpOrigin, WhatIsNoUrlIsNamed) {
  for (const char* text : {"",
                           "http://",
                           "https://",
                           "http://:80",
                           "a:b",
                           "a:0",
                           "a:65536",
                           "a:",
                           "[::1",
                           "[::1]9",
                           "http://a b/",
                           "http://user@a/",
                           "http://a/?x=1"}) {
    const Result<HttpOrigin> origin = parse_origin(text);
    ASSERT_FALSE(origin) << text;
    EXPECT_EQ(origin.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(origin.error().message, ::testing::HasSubstr(text));
  }
}

}  // namespace
}  // namespace warprow
