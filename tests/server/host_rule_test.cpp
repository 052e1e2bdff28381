// SPDX-License-Identifier: Apache-2.0
#include "server/http/host_rule.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(HostName, IsWithoutThePortAndInLowerCase) {
  EXPECT_EQ(host_name("LocalHost:8000"), "localhost");
  EXPECT_EQ(host_name("a.example"), "a.example");
  EXPECT_EQ(host_name("a_b-c.example:"), "a_b-c.example");
  EXPECT_EQ(host_name("127.0.0.1:65535"), "127.0.0.1");
  EXPECT_EQ(host_name("[::1]:80"), "::1");
  EXPECT_EQ(host_name("[::1]"), "::1");
}

TEST(HostName, MalformedOnesAreNone) {
  for (const char* value :
       {"",           ":80",      "a b",  "a,b",  "a@b",  "a/b",     "a:65536",
        "a:8x",       "a:1:2",    "::1",  "[::1", "[x]",  "[::1]x",  "[::1]:99999",
        "user@[::1]", "\xc3\xa9", "a%41", "[]",   "a\tb", "http://a"}) {
    EXPECT_EQ(host_name(value), std::nullopt) << value;
  }
}

TEST(HostName, OfAFlagHasNoPort) {
  EXPECT_EQ(allowed_host("Box.Example"), "box.example");
  EXPECT_EQ(allowed_host("fe80::1"), "fe80::1");
  EXPECT_EQ(allowed_host("*"), "*");
  for (const char* value : {"", "box:80", "[::1]:80", "*.example", "a b"}) {
    EXPECT_EQ(allowed_host(value), std::nullopt) << value;
  }
}

TEST(LoopbackName, IsLocalhostOrAnAddressOfThisMachineAlone) {
  for (const char* name : {"localhost", "127.0.0.1", "127.255.3.9", "::1", "0:0:0:0:0:0:0:1"}) {
    EXPECT_TRUE(is_loopback_name(name)) << name;
  }
  for (const char* name : {"",
                           "localhost.evil.example",
                           "127.0.0.1.evil.example",
                           "evil.localhost",
                           "128.0.0.1",
                           "0.0.0.0",
                           "127.1",
                           "::2",
                           "10.0.0.1",
                           "localhos"}) {
    EXPECT_FALSE(is_loopback_name(name)) << name;
  }
}

TEST(HostRule, AllowsLoopbackAndWhatIsListed) {
  HostRule rule;
  EXPECT_TRUE(rule.allows("evil.example"));
  rule = {.guarded = true, .allowed = {"box.example"}};
  EXPECT_TRUE(rule.allows("localhost"));
  EXPECT_TRUE(rule.allows("box.example"));
  EXPECT_FALSE(rule.allows("evil.example"));
  EXPECT_FALSE(rule.allows("a.box.example"));
  rule.allowed = {"*"};
  EXPECT_TRUE(rule.allows("evil.example"));
}

}  // namespace
}  // namespace warprow
