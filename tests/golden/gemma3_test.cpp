// SPDX-License-Identifier: Apache-2.0
// A tiny Gemma 3 text model, from config.json to logits, against an oracle in doubles.
#include "models/registry.h"
#include "tests/support/gemma3_case.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using test::gemma3_config;
using test::TempDir;

class Gemma3 : public testing::TestWithParam<bool> {};

TEST_P(Gemma3, EqualsTheOracle) {
  test::expect_gemma3_equals_oracle(GetParam() ? test::nested_gemma3_config()
                                               : test::gemma3_config());
}

INSTANTIATE_TEST_SUITE_P(Configs, Gemma3, testing::Bool(), [](const auto& nested) {
  return nested.param ? "OfTransformers5" : "Older";
});

// What the family may ask for and the forward lacks is refused, never ignored.
TEST(Gemma3Config, Refusals) {
  const auto error_of = [](const json& json_config) -> std::string {
    const TempDir dir;
    dir.write("config.json", json_config.dump());
    const auto checkpoint = value_or_throw(Checkpoint::open(
        value_or_throw(resolve_model(
            dir.path().string(), CachePaths::from_environment(), WeightFiles::kNotRead)),
        WeightFiles::kNotRead));
    const auto spec = read_decoder_spec(checkpoint);
    return spec ? "" : spec.error().message;
  };
  EXPECT_EQ(error_of(gemma3_config()), "");
  json bad = gemma3_config();
  bad["final_logit_softcapping"] = 30.0;
  EXPECT_EQ(error_of(bad), "final_logit_softcapping is not supported");
  bad = gemma3_config();
  bad["use_bidirectional_attention"] = true;
  EXPECT_EQ(error_of(bad), "use_bidirectional_attention is not supported");
  for (const char* key : {"head_dim", "query_pre_attn_scalar", "sliding_window", "rope_theta"}) {
    bad = gemma3_config();
    bad.erase(key);
    EXPECT_EQ(error_of(bad), std::string("config.json: ") + key + " is missing");
  }
}

}  // namespace
}  // namespace warprow
