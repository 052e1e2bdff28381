// SPDX-License-Identifier: Apache-2.0
// Scaled ropes in both spellings of config.json, against transformers. Data: tools/gen/make_rope_goldens.py.
#include "models/rope_metadata.h"

#include "models/registry.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;

DecoderSpec spec_of(const json& config) {
  const test::TempDir dir;
  dir.write("config.json", config.dump());
  const auto checkpoint = value_or_throw(Checkpoint::open(
      value_or_throw(resolve_model(
          dir.path().string(), CachePaths::from_environment(), WeightFiles::kNotRead)),
      WeightFiles::kNotRead));
  return value_or_throw(read_decoder_spec(checkpoint));
}

TEST(RopeMetadata, EqualsTransformers) {
  std::ifstream file(test::source_path("tests/models/transformers_ropes.json"));
  const json cases = json::parse(file);
  ASSERT_GE(cases.size(), 20U);
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    DecoderSpec spec = spec_of(one["config"]);
    set_longest_sequence(spec, one["max_len"].get<int32_t>());
    const RopeSpec& rope = spec.ropes.front();
    EXPECT_FLOAT_EQ(rope.attention_factor, one["attention_factor"].get<float>());
    const std::vector<float> inv_freq = rope_inv_freq(rope);
    ASSERT_EQ(inv_freq.size(), one["inv_freq"].size());
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      const float want = one["inv_freq"][i].get<float>();
      EXPECT_NEAR(inv_freq[i], want, 1e-6F * want) << i;
    }
  }
}

// A model that may run longer sequences than it was trained on takes the long factors for all of them.
TEST(RopeMetadata, TheLongestSequenceDecides) {
  RopeSpec rope;
  rope.rot_dim = 4;
  rope.scaling = RopeScaling::kLongRope;
  rope.original_max_position = 64;
  rope.short_factors = {1.0F, 2.0F};
  rope.long_factors = {4.0F, 8.0F};
  rope.max_len = 64;
  EXPECT_FLOAT_EQ(rope_inv_freq(rope)[1], 0.005F);
  rope.max_len = 65;
  EXPECT_FLOAT_EQ(rope_inv_freq(rope)[1], 0.00125F);
}

TEST(RopeMetadata, RefusalsNameTheField) {
  const auto error_of = [](const json& object) {
    RopeSpec rope;
    rope.rot_dim = 8;
    const auto read = read_json_rope(object, rope, {8, 4096, 0});
    return read ? std::string() : read.error().message;
  };
  EXPECT_EQ(error_of({{"type", "yarn"}}), "");
  for (const char* key : {"factor", "beta_fast", "attention_factor", "rope_theta"}) {
    for (const json& bad : {json(0), json(-1.5), json("x"), json(1e38)}) {
      EXPECT_NE(error_of({{"type", "yarn"}, {key, bad}}).find(key), std::string::npos)
          << key << " " << bad;
    }
  }
  EXPECT_NE(error_of({{"type", "yarn"}, {"truncate", 1}}).find("truncate"), std::string::npos);
  EXPECT_NE(
      error_of({{"type", "yarn"}, {"original_max_position_embeddings", 1e12}}).find("original"),
      std::string::npos);
  EXPECT_NE(error_of({{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}}).find("long_factor"),
            std::string::npos);
  const json four = {1, 1, 1, 1};
  for (const char* name : {"longrope", "su", "yarn"}) {  // Phi-3's early files have the other names
    const auto read = read_json_rope(
        {{"type", name}, {"short_factor", four}, {"long_factor", four}}, {8}, {8, 4096, 1024});
    EXPECT_EQ(value_or_throw(read).scaling, RopeScaling::kLongRope);
  }
  EXPECT_NE(error_of({{"type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", four}})
                .find("short_factor of the rope is [1,1,1], expected 4 numbers"),
            std::string::npos);
  EXPECT_NE(error_of({{"type", "longrope"}, {"short_factor", {1, 1, 0, 1}}, {"long_factor", four}})
                .find("short_factor"),
            std::string::npos);
  EXPECT_NE(error_of({{"partial_rotary_factor", 0.4}}).find("rope dimensions"), std::string::npos);
  EXPECT_NE(error_of({{"rope_type", "mrope"}}).find("rope_type mrope"), std::string::npos);
}

}  // namespace
}  // namespace warprow
