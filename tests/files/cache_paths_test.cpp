// SPDX-License-Identifier: Apache-2.0
#include "files/cache_paths.h"

#include <map>
#include <optional>
#include <stdlib.h>
#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Sets environment variables and restores the old values.
class CachePathsTest : public ::testing::Test {
 protected:
  CachePathsTest() {
    for (const char* name : {"HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"}) {
      const char* value = ::getenv(name);
      saved_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      ::unsetenv(name);
    }
    ::setenv("HOME", "/h", 1);
  }
  ~CachePathsTest() override {
    for (const auto& [name, value] : saved_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> saved_;
};

TEST_F(CachePathsTest, FollowTheEnvironment) {
  EXPECT_EQ(CachePaths::from_environment().warprow, "/h/.cache/warprow");
  EXPECT_EQ(CachePaths::from_environment().huggingface_hub, "/h/.cache/huggingface/hub");
  ::setenv("XDG_CACHE_HOME", "", 1);
  EXPECT_EQ(CachePaths::from_environment().warprow, "/h/.cache/warprow");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(CachePaths::from_environment().warprow, "/x/warprow");
  EXPECT_EQ(CachePaths::from_environment().huggingface_hub, "/x/huggingface/hub");
  ::setenv("HF_HOME", "/hf", 1);
  EXPECT_EQ(CachePaths::from_environment().huggingface_hub, "/hf/hub");
  ::setenv("HF_HUB_CACHE", "/hub", 1);
  EXPECT_EQ(CachePaths::from_environment().huggingface_hub, "/hub");
}

}  // namespace
}  // namespace warprow
