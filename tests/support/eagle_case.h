// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/eagle_oracle.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temp_dir.h"
#include "wire/token_lists.h"
#include "worker/machine_facts.h"
#include "worker/model_plan.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {

// A model and heads that draft for it, with their oracles, for tests on each device.

constexpr int kHeadTestVocab = 128;
constexpr int kHeadTestHidden = 64;

inline OracleModel head_test_shape(int num_heads) {
  OracleLayer layer;
  layer.num_heads = num_heads;
  layer.num_kv_heads = 1;
  layer.head_dim = layer.rot_dim = 64;
  layer.theta = 10000.0;
  layer.scale = 0.125;
  layer.intermediate = 64;
  OracleModel model;
  model.hidden = kHeadTestHidden;
  model.vocab = kHeadTestVocab;
  model.eps = 1e-5;
  model.layers.assign(4, layer);
  return model;
}

// A model and its files.
class HeadTarget {
 public:
  explicit HeadTarget(int num_heads = 2) : model_(head_test_shape(num_heads)) {
    RandomCheckpoint tensors(model_, 7);
    tensors.add_ends(false, {1, 33, 65, 97});
    for (int i = 0; i < 4; ++i) {
      tensors.add_layer(i, {});
    }
    const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                   {"model_type", "llama"},
                                   {"hidden_act", "silu"},
                                   {"hidden_size", kHeadTestHidden},
                                   {"head_dim", 64},
                                   {"intermediate_size", 64},
                                   {"max_position_embeddings", 512},
                                   {"num_attention_heads", num_heads},
                                   {"num_key_value_heads", 1},
                                   {"num_hidden_layers", 4},
                                   {"rms_norm_eps", 1e-5},
                                   {"rope_theta", 10000.0},
                                   {"vocab_size", kHeadTestVocab}};
    dir_.write("config.json", config.dump());
    dir_.write("model.safetensors", tensors.bytes());
  }
  [[nodiscard]] const OracleModel& model() const { return model_; }
  [[nodiscard]] std::string path() const { return dir_.path().string(); }

 private:
  OracleModel model_;
  TempDir dir_;
};

inline const HeadTarget& head_target() {
  static const HeadTarget kTarget;
  return kTarget;
}

// A head and its files.
struct HeadFiles {
  RandomHead random;
  TempDir dir;

  // draft_vocab, own_embedding: RandomHead's.
  explicit HeadFiles(HeadFormat format,
                     int draft_vocab = 0,
                     bool own_embedding = false,
                     const HeadTarget& target = head_target())
      : random(target.model(), format, 3, draft_vocab, own_embedding) {
    dir.write("config.json", random.config().dump());
    dir.write("model.safetensors", random.weights());
  }
  [[nodiscard]] const char* method() const {
    return random.head().format == HeadFormat::kEagle ? "eagle" : "eagle3";
  }
};

inline RigOptions head_target_options(const std::string& device = "cpu") {
  RigOptions options = small_options(head_target().path());
  options.config.device = device;
  return options;
}

// With drafts, of which the host is told in every step.
inline RigOptions head_options(const HeadFiles& head,
                               int32_t num_drafts,
                               const std::string& device = "cpu") {
  RigOptions options = head_target_options(device);
  options.config.speculative_config =
      head_config(head.method(), head.dir.path().string(), num_drafts);
  options.edit_step = want_drafts;
  return options;
}

// A request whose answer has few different tokens, which are among the ids of a head with 8 or 4: some drafts are right.
inline Request head_request(uint64_t id, int32_t prompt_len, int32_t max_tokens) {
  Request request;
  request.id = id;
  for (int32_t i = 0; i < prompt_len; ++i) {
    request.prompt.push_back(3 + (i * i + 7 * static_cast<int32_t>(id)) % 90);
  }
  request.max_tokens = max_tokens;
  request.params.num_logprobs = 1;
  TokenLists lists;
  for (const TokenId token : {1, 33, 65, 97}) {
    lists.biases.emplace_back(token, 40.0F);
  }
  request.token_lists = pack_token_lists(lists);
  request.params.flags |= SamplingParams::kHasTokenLists;
  return request;
}

// Options and requests of what every head is tested with.
struct HeadCase {
  RigOptions options;
  std::vector<Request> requests;
};

inline HeadCase chunked_case(RigOptions options) {
  options.config.max_num_batched_tokens = 16;
  options.config.max_num_seqs = 4;
  return {std::move(options),
          {head_request(1, 70, 24), head_request(2, 45, 24), head_request(3, 16, 24)}};
}

inline HeadCase preempting_case(RigOptions options) {
  options.config.max_model_len = 128;
  const ModelPlan plan = value_or_throw(plan_model(options.config, this_machine()));
  options.config.kv_cache_memory_bytes = 14 * plan.kv_cache.block_bytes();
  return {std::move(options),
          {head_request(1, 50, 40), head_request(2, 45, 40), head_request(3, 40, 40)}};
}

// Recorded sampling has the head's forwards in it, for more rows than the step has.
inline HeadCase recorded_case(RigOptions options) {
  options.config.cudagraph_mode = "full";
  options.config.cudagraph_capture_sizes = "4,12,32,128";
  options.device.mode = cpu::CpuStreamMode::kDeferred;
  options.device.shuffle = true;
  options.device.seed = 5;
  return {std::move(options),
          {head_request(1, 20, 30), head_request(2, 33, 40), head_request(3, 2, 36)}};
}

// vllm#53670: a hit drops no block. The head's key of its last position was made with the token that followed in the first
// request; where another one follows, only that key differs.
inline void expect_drafts_after_a_hit(RigOptions options) {
  options.config.enable_prefix_caching = true;
  ModelRig rig(options);
  rig.add(head_request(1, 65, 24));
  rig.run();
  Request again = head_request(1, 65, 24);
  again.id = 2;
  rig.add(again);
  rig.run();
  EXPECT_EQ(rig.scheduler().stats().num_prefix_hit_tokens, 64);
  EXPECT_EQ(rig.results().at(1).tokens, rig.results().at(2).tokens);
  EXPECT_EQ(rig.results().at(1).proposed, rig.results().at(2).proposed);
}

// The prefix that both prompts share ends with a block, and another token follows: one key of the head is of the other text.
// target: without drafts.
inline void expect_answers_after_a_hit_at_an_edge(RigOptions options, const RigOptions& target) {
  options.config.enable_prefix_caching = true;
  ModelRig rig(options);
  ModelRig alone(target);
  Request request = head_request(1, 64, 40);
  request.prompt.push_back(7);
  rig.add(request);
  rig.run();
  const int64_t accepted_before = rig.scheduler().stats().num_accepted_tokens;
  request.id = 2;
  request.prompt.back() = 8;
  rig.add(request);
  alone.add(request);
  rig.run();
  EXPECT_EQ(rig.scheduler().stats().num_prefix_hit_tokens, 64);
  EXPECT_GT(rig.scheduler().stats().num_accepted_tokens, accepted_before);
  EXPECT_EQ(rig.results().at(2).tokens, alone.run().at(2).tokens);
  EXPECT_EQ(rig.results().at(2).top, alone.results().at(2).top);
}

// In an 8-bit KV cache the answers are those without drafts in the same cache. target: without drafts.
inline void expect_answers_in_an_eight_bit_cache(RigOptions options, RigOptions target) {
  for (const char* dtype : {"fp8_e4m3", "fp8_e5m2"}) {
    SCOPED_TRACE(dtype);
    options.config.kv_cache_dtype = target.config.kv_cache_dtype = dtype;
    ModelRig rig(options);
    ModelRig alone(target);
    for (const Request& request : {head_request(1, 17, 40), head_request(2, 40, 24)}) {
      rig.add(request);
      alone.add(request);
    }
    const std::map<uint64_t, RigResult> results = rig.run();
    EXPECT_GT(rig.scheduler().stats().num_accepted_tokens, 0);
    for (const auto& [id, expected] : alone.run()) {
      EXPECT_EQ(results.at(id).tokens, expected.tokens);
      EXPECT_EQ(results.at(id).top, expected.top);
      EXPECT_EQ(results.at(id).reason, expected.reason);
    }
  }
}

struct HeadRun {
  int num_compared = 0;  // drafts of a row in a step
  int num_near = 0;      // those not compared, as two logits were nearly equal
  SchedulerStats stats;
};

// Runs the requests with these options. Expects each row's drafts of each step to be the oracle's, and the answers to be
// those of the options `plain`, without drafts.
inline HeadRun expect_oracles_drafts(const OracleModel& target,
                                     const OracleHead& head,
                                     const RigOptions& options,
                                     const RigOptions& plain,
                                     const std::vector<Request>& requests,
                                     int32_t num_drafts) {
  constexpr double kNear = 1e-4;  // float32 and double may order logits differently
  const auto run = [&](const RigOptions& with, SchedulerStats& stats) {
    ModelRig rig(with);
    for (const Request& request : requests) {
      rig.add(request);
    }
    std::map<uint64_t, RigResult> results = rig.run();
    rig.scheduler().check_invariants();
    stats = rig.scheduler().stats();
    return results;
  };
  HeadRun seen;
  SchedulerStats of_plain;
  const std::map<uint64_t, RigResult> expected = run(plain, of_plain);
  const std::map<uint64_t, RigResult> results = run(options, seen.stats);
  for (const Request& request : requests) {
    const RigResult& result = results.at(request.id);
    EXPECT_EQ(result.tokens, expected.at(request.id).tokens);
    EXPECT_EQ(result.top, expected.at(request.id).top);
    EXPECT_FALSE(result.proposed.empty());
    std::vector<int32_t> tokens(request.prompt.begin(), request.prompt.end());
    tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
    const EagleOracle oracle(target, head, tokens);
    for (const auto& [num_tokens, drafts] : result.proposed) {
      if (num_tokens == result.tokens.size()) {
        continue;  // behind the end
      }
      const EagleOracle::Drafts want =
          oracle.drafts(request.prompt.size() + num_tokens, num_drafts);
      if (want.least_gap < kNear) {
        ++seen.num_near;
        continue;
      }
      EXPECT_EQ(std::vector<int32_t>(drafts.begin(), drafts.end()), want.ids)
          << "request " << request.id << " behind " << num_tokens << " tokens";
      ++seen.num_compared;
    }
  }
  EXPECT_GT(seen.num_compared, 20 * seen.num_near);
  return seen;
}

inline HeadRun expect_oracles_drafts(const HeadFiles& head,
                                     const RigOptions& options,
                                     const RigOptions& plain,
                                     const std::vector<Request>& requests,
                                     int32_t num_drafts) {
  return expect_oracles_drafts(
      head_target().model(), head.random.head(), options, plain, requests, num_drafts);
}

}  // namespace warprow::test
