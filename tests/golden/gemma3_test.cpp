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

class Gemma3 : public ::testing::TestWithParam<bool> {};

TEST_P(Gemma3, EqualsTheOracle) {
  test::expect_gemma3_equals_oracle(GetParam() ? test::nested_gemma3_config()
                                               : test::gemma3_config());
}

INSTANTIATE_TEST_SUITE_P(Configs, Gemma3, ::testing::Bool(), [](const auto& nested) {
  return nested.param ? "OfTransformers5" : "Older";
});

// The text model of one that also sees images, where published files and transformers 5 have it.
TEST(Gemma3Config, TextOfALargerModelEqualsTheOracle) {
  json text = gemma3_config();
  for (const char* key : {"architectures", "hidden_activation", "max_position_embeddings"}) {
    text.erase(key);
  }
  json config = {{"architectures", {"Gemma3ForConditionalGeneration"}}, {"text_config", text}};
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    SCOPED_TRACE(prefix);
    test::expect_gemma3_equals_oracle(config, "cpu", prefix);
  }
}

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
  EXPECT_EQ(error_of({{"architectures", {"Gemma3ForConditionalGeneration"}}}),
            "config.json: text_config is missing");
  json bad = gemma3_config();
  bad["final_logit_softcapping"] = -30.0;
  EXPECT_EQ(error_of(bad), "model config: final_logit_softcapping is -30");
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
