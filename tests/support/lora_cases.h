// SPDX-License-Identifier: Apache-2.0
// Tests of LoRA adapters on the devices that the including file names: answers equal those of merged weights, and rows with several adapters and without one in a batch have the
// bits that they have alone.
#pragma once

#include "tests/support/model_rig.h"
#include "tests/support/random_adapter.h"
#include "tests/support/random_model.h"
#include "tests/support/rig_rules.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {

inline constexpr int32_t kNumAdapters = 3;

inline RandomModel small_model(const std::string& family = "llama") {
  return {
      .family = family, .num_layers = 2, .hidden_size = 128, .intermediate_size = 192, .seed = 31};
}

// Of different ranks, targets and scales.
inline RandomAdapter adapter(int32_t number) {
  switch (number) {
    case 0:
      return {.r = 8, .alpha = 16, .seed = 40};
    case 1:
      return {.r = 4,
              .alpha = 8,
              .rslora = true,
              .targets = {"q_proj", "v_proj", "up_proj", "down_proj"},
              .more = {{"rank_pattern", {{"v_proj", 3}, {"layers.1.mlp.up_proj", 12}}},
                       {"alpha_pattern", {{"(model.)?layers\\.\\d+\\.mlp\\.down_proj", 5}}}},
              .seed = 41,
              .ranks = {{"v_proj", 3}, {"layers.1.mlp.up_proj", 12}},
              .alphas = {{"down_proj", 5}}};
    default:
      return {.r = 16, .alpha = 4, .targets = {"o_proj", "k_proj", "gate_proj"}, .seed = 42};
  }
}

inline RigOptions options_of(const std::string& model, const std::string& device) {
  RigOptions options;
  options.config.model = model;
  options.config.device = device;
  options.config.dtype = "float32";
  options.config.kv_cache_memory_bytes = int64_t{32} << 20;
  options.config.max_model_len = 256;
  options.config.max_num_seqs = 16;
  options.config.max_num_batched_tokens = 64;
  options.config.enable_prefix_caching = false;
  options.config.fp8_activations = "off";
  if (device == "cpu") {
    options.config.threads = 1;
    options.device.num_threads = 1;
  }
  return options;
}

// How many ranks divide each layer, and how many stages the list of layers.
struct LoraRanks {
  int32_t tensor = 1;
  int32_t pipeline = 1;
};

inline RigOptions divided(RigOptions options, const LoraRanks& ranks) {
  options.config.tensor_parallel_size = ranks.tensor;
  options.config.pipeline_parallel_size = ranks.pipeline;
  return options;
}

inline RigOptions with_lora(RigOptions options) {
  options.config.enable_lora = true;
  options.config.max_loras = kNumAdapters;
  options.config.max_lora_rank = 16;
  return options;
}

// With log-probabilities of the prompt and the answer.
inline std::vector<Request> requests_of(const RandomModel& model, int32_t count) {
  std::vector<Request> requests = mixed_requests(
      {.num_requests = count, .max_prompt = 60, .max_tokens = 12, .vocab_size = model.vocab_size});
  for (int32_t i = 0; i < count; ++i) {
    Request& request = requests[static_cast<size_t>(i)];
    request.params.num_logprobs = 5;
    request.params.num_prompt_logprobs = 3;
    request.adapter = i % (kNumAdapters + 1) - 1;
  }
  return requests;
}

inline void load_all(ModelRig& rig, const TempDir& dir, const RandomModel& model) {
  for (int32_t i = 0; i < kNumAdapters; ++i) {
    rig.load_adapter(i, adapter(i).write(dir, "adapter" + std::to_string(i), model));
  }
}

inline double worst_difference(const std::vector<TokenLogprobs>& a,
                               const std::vector<TokenLogprobs>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i].logprob) - b[i].logprob));
  }
  return worst;
}

// Answers of several adapters and of the model itself, which ranks may divide, are those of merged weights on one rank: rows
// with an adapter within `limit`, those without one bit for bit unless sums are over ranks.
// base: where the model lies. values: where its weights lie as bf16 or float32, if not there.
inline void expect_merged(const RandomModel& model,
                          const std::string& device,
                          const LoraRanks& ranks,
                          const TempDir& dir,
                          const std::string& base,
                          const std::string& values,
                          double limit = 1e-4) {
  const std::vector<Request> requests = requests_of(model, 8);
  ModelRig rig(divided(with_lora(options_of(base, device)), ranks));
  load_all(rig, dir, model);
  for (const Request& request : requests) {
    rig.add(request);
  }
  rig.run();
  EXPECT_GT(rig.scheduler().stats().num_mixed_steps, 0);
  for (int32_t i = -1; i < kNumAdapters; ++i) {
    SCOPED_TRACE(i);
    const std::string merged =
        i < 0 ? base : adapter(i).write_merged(dir, "merged" + std::to_string(i), model, values);
    ModelRig alone(options_of(merged, device));
    for (Request request : requests) {
      if (request.adapter == i) {
        request.adapter = -1;
        alone.add(request);
      }
    }
    for (const auto& [id, result] : alone.run()) {
      const RigResult& adapted = rig.results().at(id);
      EXPECT_EQ(adapted.tokens, result.tokens);
      const double most = i < 0 && ranks.tensor == 1 ? 0.0 : limit;
      EXPECT_LE(worst_difference(adapted.logprobs, result.logprobs), most);
      EXPECT_LE(worst_difference(adapted.prompt_logprobs, result.prompt_logprobs), most);
    }
  }
}

inline void expect_merged(const RandomModel& model,
                          const std::string& device,
                          const LoraRanks& ranks = {}) {
  const TempDir dir;
  const std::string base = model.write(dir);
  expect_merged(model, device, ranks, dir, base, base);
}

struct LoraAxis {
  const char* name;
  void (*set)(RigOptions&);
};

// A row has the bits that it has alone, in every configuration; one without an adapter those that it has without --enable-lora.
inline void expect_same_bits_in_a_batch(const RandomModel& model,
                                        const std::string& base,
                                        const std::string& device,
                                        const LoraRanks& ranks,
                                        const std::vector<std::string>& dtypes) {
  const TempDir dir;
  const std::vector<Request> requests = requests_of(model, 16);
  for (const std::string& dtype : dtypes) {
    RigOptions options = divided(with_lora(options_of(base, device)), ranks);
    options.config.dtype = dtype;
    options.config.batch_invariant = device == "cuda";
    RigOptions alone = options;
    alone.config.async_scheduling = false;
    alone.config.cudagraph_mode = "none";
    ModelRig one(alone);
    load_all(one, dir, model);
    for (const Request& request : requests) {
      one.add(request);
      one.run();
    }
    RigOptions without = alone;
    without.config.enable_lora = false;
    ModelRig base_rows(without);
    for (const Request& request : requests) {
      if (request.adapter < 0) {
        base_rows.add(request);
        base_rows.run();
      }
    }
    for (const auto& [id, result] : base_rows.results()) {
      EXPECT_EQ(result.tokens, one.results().at(id).tokens) << dtype << " " << id;
      EXPECT_EQ(result.top, one.results().at(id).top) << dtype << " " << id;
    }
    const LoraAxis axes[] = {
        {"together", [](RigOptions&) {}},
        {"sync", [](RigOptions& o) { o.config.async_scheduling = false; }},
        {"chunk_16",
         [](RigOptions& o) {
           o.config.max_num_seqs = 8;
           o.config.max_num_batched_tokens = 16;
         }},
        {"graph_full",
         [](RigOptions& o) {
           o.config.cudagraph_mode = "full";
           o.config.cudagraph_capture_sizes = "8,64";
         }},
        {"graph_piecewise",
         [](RigOptions& o) {
           o.config.cudagraph_mode = "piecewise";
           o.config.cudagraph_capture_sizes = "8,64";
         }},
        {"prefix_caching", [](RigOptions& o) { o.config.enable_prefix_caching = true; }},
        {"two_places",
         [](RigOptions& o) {
           o.config.max_loras = 2;
           o.config.max_cpu_loras = kNumAdapters;
         }},
        {"one_place",
         [](RigOptions& o) {
           o.config.max_loras = 1;
           o.config.max_cpu_loras = kNumAdapters;
         }},
    };
    for (const LoraAxis& axis : axes) {
      SCOPED_TRACE(dtype + " " + axis.name);
      RigOptions changed = options;
      axis.set(changed);
      ModelRig rig(changed);
      load_all(rig, dir, model);
      for (const Request& request : requests) {
        rig.add(request);
      }
      for (const auto& [id, result] : rig.run()) {
        EXPECT_EQ(result.tokens, one.results().at(id).tokens) << id;
        EXPECT_EQ(result.top, one.results().at(id).top) << id;
        EXPECT_EQ(result.prompt_top, one.results().at(id).prompt_top) << id;
      }
      rig.scheduler().check_invariants();
    }
  }
}

inline void expect_same_bits_in_a_batch(const std::string& device, const LoraRanks& ranks = {}) {
  const RandomModel model = small_model();
  const TempDir dir;
  expect_same_bits_in_a_batch(model, model.write(dir), device, ranks, {"float32", "auto"});
}

class Lora : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "cuda") {
      if (const cuda::Availability found = cuda::find_device(); !found.why_not.empty()) {
        GTEST_SKIP() << found.why_not;
      }
    }
  }
};

TEST_P(Lora, EqualsMergedWeights) { expect_merged(small_model(), GetParam()); }

TEST_P(Lora, EqualsMergedWeightsWithBiasesAndNorms) {
  expect_merged(small_model("qwen2"), GetParam());
  expect_merged(small_model("qwen3"), GetParam());
}

TEST_P(Lora, RowsHaveTheSameBitsInABatch) { expect_same_bits_in_a_batch(GetParam()); }

// The same prompt under several adapters: cached blocks of one must not serve another.
TEST_P(Lora, CachedPrefixesBelongToTheirAdapter) {
  const RandomModel model = small_model();
  const TempDir dir;
  RigOptions options = with_lora(options_of(model.write(dir), GetParam()));
  options.config.enable_prefix_caching = true;
  ModelRig rig(options);
  load_all(rig, dir, model);
  Request request = requests_of(model, 1).front();
  request.params.num_prompt_logprobs = -1;
  request.prompt.clear();
  for (TokenId id = 0; id < 48; ++id) {
    request.prompt.push_back(3 + id * 7 % 300);
  }
  std::vector<std::vector<TokenId>> first;
  for (int32_t round = 0; round < 2; ++round) {
    for (int32_t adapter = -1; adapter < kNumAdapters; ++adapter) {
      request.id += 1;
      request.adapter = adapter;
      rig.add(request);
      const RigResult result = rig.run().at(request.id);
      const auto at = static_cast<size_t>(adapter + 1);
      if (round == 0) {
        EXPECT_EQ(result.num_cached_tokens, 0);
        first.push_back(result.tokens);
      } else {
        EXPECT_GT(result.num_cached_tokens, 0);
        EXPECT_EQ(result.tokens, first[at]);
      }
    }
  }
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(first[1], first[2]);
}

}  // namespace warprow::test
