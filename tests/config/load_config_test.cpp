// SPDX-License-Identifier: Apache-2.0
#include "config/load_config.h"

#include "config/print_config.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

class LoadConfig : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = ::testing::TempDir() + "load_config_" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                             ".yaml";
    std::ofstream(path) << text;
    return path;
  }
  Result<LoadedConfig> load(const std::string& file, const std::vector<FlagValue>& flags = {}) {
    return load_config(
        file,
        [this](const std::string& name) -> std::optional<std::string> {
          const auto found = environment_.find(name);
          return found == environment_.end() ? std::nullopt : std::optional(found->second);
        },
        flags);
  }
  std::string error(const std::string& file, const std::vector<FlagValue>& flags = {}) {
    const auto loaded = load(file, flags);
    return loaded ? "" : loaded.error().message;
  }

  std::map<std::string, std::string> environment_;
};

TEST_F(LoadConfig, NothingGivenIsTheDefaults) {
  const auto loaded = load("");
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->config.block_size, EngineConfig{}.block_size);
  EXPECT_EQ(loaded->origin("block-size"), Origin::kDefault);
}

TEST_F(LoadConfig, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const std::string file =
      write("max-num-seqs: 1\nblock_size: 32\nthreads: 3\nenable-prefix-caching: false\n");
  environment_ = {{"WARPROW_MAX_NUM_SEQS", "2"}, {"WARPROW_THREADS", "4"}};
  const auto loaded = load(file, {{"max-num-seqs", "5"}, {"max-num-seqs", "6"}});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->config.max_num_seqs, 6);
  EXPECT_EQ(loaded->origin("max-num-seqs"), Origin::kFlag);
  EXPECT_EQ(loaded->config.threads, 4);
  EXPECT_EQ(loaded->origin("threads"), Origin::kEnv);
  EXPECT_EQ(loaded->config.block_size, 32);
  EXPECT_EQ(loaded->origin("block-size"), Origin::kFile);
  EXPECT_FALSE(loaded->config.enable_prefix_caching);
  EXPECT_EQ(loaded->origin("dtype"), Origin::kDefault);
}

TEST_F(LoadConfig, FileMistakesAreNamed) {
  EXPECT_THAT(error(write("max-modle-len: 5\n")), HasSubstr("unknown key 'max-modle-len'"));
  EXPECT_THAT(error(write("block-size: 17\n")),
              HasSubstr(".yaml: block-size: 17 is not a multiple of 16"));
  EXPECT_THAT(error(write("block-size: 16\nblock_size: 32\n")),
              HasSubstr("block_size: is set twice"));
  EXPECT_THAT(error(write("block-size: [16]\n")), HasSubstr("block-size: must be one value"));
  EXPECT_THAT(error(write("block-size:\n")), HasSubstr("block-size: must be one value"));
  EXPECT_THAT(error(write("- a\n- b\n")), HasSubstr("must be a mapping"));
  EXPECT_THAT(error(write("a: [1\nb: }\n")), HasSubstr("not YAML"));
  EXPECT_THAT(error("/nonexistent/warprow.yaml"),
              HasSubstr("/nonexistent/warprow.yaml: cannot read the file"));
  EXPECT_THAT(error(::testing::TempDir()), HasSubstr("cannot read the file"));
}

TEST_F(LoadConfig, AnEmptyFileSetsNothing) {
  EXPECT_EQ(error(write("")), "");
  EXPECT_EQ(error(write("# nothing\n")), "");
}

TEST_F(LoadConfig, EnvironmentAndFlagMistakesNameTheVariableOrFlag) {
  EXPECT_THAT(error("", {{"threads", "x"}}), HasSubstr("--threads: 'x' is not a number"));
  environment_ = {{"WARPROW_LOG_LEVEL", "loud"}, {"WARPROW_BLOCK_SIZE", "8"}};
  EXPECT_THAT(error(""), HasSubstr("WARPROW_BLOCK_SIZE: 8 is below the least allowed, 16"));
}

TEST_F(LoadConfig, PrintedConfigReadsBack) {
  environment_ = {{"WARPROW_MODEL", "/tmp/a b: #c\"d.gguf"}};
  const auto loaded = load("", {{"max-num-seqs", "8"}});
  ASSERT_TRUE(loaded);
  const auto resolved =
      resolve(loaded->config, {.usable_cores = 3, .usable_memory_bytes = 1 << 30});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(settings_line(*loaded), "--model /tmp/a b: #c\"d.gguf (env), --max-num-seqs 8 (flag)");
  const std::string yaml = config_as_yaml(*loaded, *resolved);
  EXPECT_THAT(yaml, HasSubstr("max-num-seqs: 8"));
  EXPECT_THAT(yaml, ::testing::ContainsRegex("threads: 0 +# default, becomes 3"));
  EXPECT_THAT(config_as_json(*loaded, *resolved),
              HasSubstr(R"("threads":{"value":0,"source":"default","resolved":3})"));

  environment_.clear();
  const auto again = load(write(yaml));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->config.model, "/tmp/a b: #c\"d.gguf");
  EXPECT_EQ(again->config.max_num_seqs, 8);
  EXPECT_EQ(again->origin("max-num-seqs"), Origin::kFile);
}

}  // namespace
}  // namespace warprow
