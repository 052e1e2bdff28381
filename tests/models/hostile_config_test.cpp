// SPDX-License-Identifier: Apache-2.0
// Each field of the config.json of some families, one after the other, with values that lie. Such a file is refused in one
// line, or describes a model whose sizes agree.
#include "models/registry.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;

Result<DecoderSpec> spec_of_file(const test::TempDir& dir, const json& config) {
  dir.write("config.json", config.dump());
  auto files =
      resolve_model(dir.path().string(), CachePaths::from_environment(), WeightFiles::kNotRead);
  auto checkpoint = Checkpoint::open(value_or_throw(files), WeightFiles::kNotRead);
  return checkpoint ? read_decoder_spec(*checkpoint) : tl::unexpected(checkpoint.error());
}

void expect_sound(const Result<DecoderSpec>& spec) {
  if (!spec) {
    EXPECT_FALSE(spec.error().message.empty());
    EXPECT_EQ(spec.error().message.find('\n'), std::string::npos);
    return;
  }
  EXPECT_GT(spec->vocab_size, 0);
  ASSERT_EQ(spec->layers.size(), static_cast<size_t>(spec->num_layers));
  for (const LayerSpec& layer : spec->layers) {
    EXPECT_GT(layer.attention.num_kv_heads, 0);
    EXPECT_EQ(layer.attention.head_dim % 8, 0);
    EXPECT_GE(layer.attention.window, 0);
    EXPECT_GT(layer.ffn.intermediate_size, 0);
  }
  for (const RopeSpec& rope : spec->ropes) {
    const std::vector<float> inv_freq = rope_inv_freq(rope);
    ASSERT_EQ(inv_freq.size(), static_cast<size_t>(rope.rot_dim / 2));
    EXPECT_GT(rope.attention_factor, 0.0F);
  }
}

// Every place of a value in the config: fields, and those of the objects in it.
void expect_sound_with_any_lie(const test::TempDir& dir, const json& good) {
  const json lies = {nullptr, -1, 0, 7, 1e30, "x", json::array({1})};
  const json flat = good.flatten();
  for (const auto& [path, value] : flat.items()) {
    if (path.starts_with("/architectures")) {
      continue;
    }
    for (const json& lie : lies) {
      SCOPED_TRACE(path + " is " + lie.dump());
      json bad = good;
      bad[json::json_pointer(path)] = lie;
      expect_sound(spec_of_file(dir, bad));
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  }
  for (const auto& [key, value] : good.items()) {
    json bad = good;
    bad.erase(key);
    SCOPED_TRACE("without " + key);
    expect_sound(spec_of_file(dir, bad));
  }
}

class HostileConfig : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileConfig, IsRefusedOrSound) {
  std::ifstream file(
      test::source_path(std::string("tests/golden/tiny/") + GetParam() + "/config.json"));
  const json good = json::parse(file);
  const test::TempDir dir;
  ASSERT_TRUE(spec_of_file(dir, good));
  expect_sound_with_any_lie(dir, good);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         HostileConfig,
                         ::testing::Values("gemma3",
                                           "gemma4_inputs",
                                           "gemma4_moe",
                                           "glm4_moe",
                                           "gpt_oss_mxfp4",
                                           "granite",
                                           "phi3_long",
                                           "smollm3"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace warprow
