// SPDX-License-Identifier: Apache-2.0
// Drafts verified by match on CUDA. Under --batch-invariant the tokens equal those without drafts bit for bit, in fewer
// steps.
#include "tests/cuda_models/known_drafts_cuda.h"
#include "tests/support/model_rig.h"
#include "tests/support/mtp_case.h"
#include "tests/support/random_hybrid.h"
#include "tests/support/random_model.h"
#include "tests/support/rig_grammars.h"
#include "tests/support/rig_rules.h"
#include "text/byte_text.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::DraftKind;
using test::KnownDrafts;
using test::ModelRig;
using test::RandomHybrid;
using test::RandomModel;
using test::RigOptions;
using test::RigResult;

struct DraftAxis {
  std::string name;
  DraftKind kind;
  int32_t num_drafts;
  std::function<void(EngineConfig&)> set;
};

const DraftAxis kAxes[] = {
    {"right_1", DraftKind::kRight, 1, [](EngineConfig&) {}},
    {"right_4_full_graphs",
     DraftKind::kRight,
     4,
     [](EngineConfig& c) {
       c.cudagraph_mode = "full";
       c.cudagraph_capture_sizes = "5,10,20,40,80,128";
     }},
    {"wrong_2_sync", DraftKind::kWrong, 2, [](EngineConfig& c) { c.async_scheduling = false; }},
    {"mixed_3_pieces",
     DraftKind::kMixed,
     3,
     [](EngineConfig& c) { c.cudagraph_mode = "piecewise"; }},
    {"mixed_3_eager_prefix_caching",
     DraftKind::kMixed,
     3,
     [](EngineConfig& c) {
       c.cudagraph_mode = "none";
       c.enable_prefix_caching = true;
     }},
    {"mixed_2_chunk_16",
     DraftKind::kMixed,
     2,
     [](EngineConfig& c) {
       c.max_num_seqs = 8;
       c.max_num_batched_tokens = 16;
     }},
};

// Drafts from the rows' own tokens, in place of known ones.
const DraftAxis kNgramAxes[] = {
    {"ngram_1", DraftKind::kMixed, 1, [](EngineConfig&) {}},
    {"ngram_7_full_graphs",
     DraftKind::kMixed,
     7,
     [](EngineConfig& c) { c.cudagraph_mode = "full"; }},
    {"ngram_3_chunk_16_prefix_caching",
     DraftKind::kMixed,
     3,
     [](EngineConfig& c) {
       c.max_num_seqs = 8;
       c.max_num_batched_tokens = 32;
       c.enable_prefix_caching = true;
     }},
};

std::vector<Request> draft_requests(int32_t vocab_size) {
  std::vector<Request> requests = test::mixed_requests(
      {.num_requests = 24, .max_prompt = 100, .max_tokens = 24, .vocab_size = vocab_size});
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& params = requests[i].params;
    if (i % 4 >= 2) {
      test::set_drawing(params, static_cast<int32_t>(i));
    }
    if (i % 5 == 3) {
      params.repetition_penalty = 1.3F;
      params.presence_penalty = 0.6F;
    }
    if (i % 8 == 5) {
      test::set_every_rule(requests[i], vocab_size);
    }
  }
  return requests;
}

RigOptions invariant_options(const std::string& model) {
  RigOptions options;
  options.config.model = model;
  options.config.device = "cuda";
  options.config.batch_invariant = true;
  options.config.kv_cache_memory_bytes = int64_t{64} << 20;
  return options;
}

class CudaDrafts : public ::testing::Test {
 protected:
  void SetUp() override {
    const cuda::Availability found = cuda::find_device();
    if (!found.why_not.empty()) {
      GTEST_SKIP() << found.why_not;
    }
  }

  // drafter(num_drafts, adaptive): a configuration in place of n-grams.
  using Drafter = std::function<std::string(int32_t num_drafts, bool adaptive)>;

  static void expect_same_tokens(const RandomModel& model, const std::string& backend) {
    const test::TempDir dir;
    const std::string path = model.write(dir);
    expect_same_tokens(path, model.vocab_size, backend, [&](int32_t num_drafts, bool adaptive) {
      return test::draft_model_config(path, num_drafts, adaptive);
    });
  }
  static void expect_same_tokens(const std::string& path,
                                 int32_t vocab_size,
                                 const std::string& backend,
                                 const Drafter& drafter,
                                 bool drafter_is_right = true) {
    RigOptions base = invariant_options(path);
    base.config.attention_backend = backend;
    base.config.max_model_len = 256;
    base.config.max_num_seqs = 32;
    base.config.max_num_batched_tokens = 128;
    base.config.enable_prefix_caching = false;
    const Grammar grammar = test::matrix_grammar(*value_or_throw(make_byte_text()));
    const std::vector<Request> requests = draft_requests(vocab_size);
    const auto run = [&](ModelRig& rig) -> std::map<uint64_t, RigResult>& {
      for (const Request& request : requests) {
        test::add_request(rig, request, &grammar);
      }
      return rig.run();
    };
    ModelRig plain(base);
    const std::map<uint64_t, RigResult> expected = run(plain);
    for (const DraftAxis& axis : kAxes) {
      SCOPED_TRACE(axis.name);
      KnownDrafts known(axis.kind, 7, &test::launch_propose_on_cuda);
      for (const Request& request : requests) {
        known.expect(request, expected.at(request.id).tokens);
      }
      RigOptions options = base;
      options.runner.max_drafts = axis.num_drafts;
      options.runner.features.extra = {known.factory()};
      axis.set(options.config);
      ModelRig rig(options);
      for (const auto& [id, result] : run(rig)) {
        EXPECT_EQ(result.tokens, expected.at(id).tokens) << "request " << id;
      }
      const SchedulerStats stats = rig.scheduler().stats();
      EXPECT_GT(stats.num_drafted_tokens, 0);
      if (axis.kind == DraftKind::kRight) {
        EXPECT_GT(2 * stats.num_accepted_tokens, stats.num_drafted_tokens);
        EXPECT_LT(rig.executor().stats().steps, plain.executor().stats().steps);
      }
      EXPECT_EQ(stats.num_accepted_tokens > 0, axis.kind != DraftKind::kWrong);
      rig.scheduler().check_invariants();
    }
    for (const DraftAxis& axis : kNgramAxes) {
      for (const bool adaptive : {false, true}) {
        for (const bool by_model : {false, true}) {
          SCOPED_TRACE(axis.name + (adaptive ? "_adaptive" : "") + (by_model ? "_by_model" : ""));
          RigOptions options = base;
          options.config.speculative_config = by_model
                                                  ? drafter(axis.num_drafts, adaptive)
                                                  : test::ngram_config(axis.num_drafts, adaptive);
          axis.set(options.config);
          ModelRig rig(options);
          for (const auto& [id, result] : run(rig)) {
            EXPECT_EQ(result.tokens, expected.at(id).tokens) << "request " << id;
          }
          const SchedulerStats stats = rig.scheduler().stats();
          EXPECT_GT(stats.num_drafted_tokens + stats.num_undrafted, 0);
          EXPECT_TRUE(adaptive || stats.num_accepted_tokens > 0 || (by_model && !drafter_is_right));
          rig.scheduler().check_invariants();
        }
      }
    }
  }
};

TEST_F(CudaDrafts, SameTokensWithNativeAttention) { expect_same_tokens({.seed = 21}, "native"); }
TEST_F(CudaDrafts, SameTokensWithFlashInfer) { expect_same_tokens({.seed = 21}, "flashinfer"); }
TEST_F(CudaDrafts, SameTokensOfWindows) {
  expect_same_tokens({.family = "mistral", .window = 32, .seed = 23}, "native");
}

// Layers with a state, which drafts enter once they are accepted: dense, and with experts. The model's own layer drafts, too.
TEST_F(CudaDrafts, SameTokensOfHybrids) {
  for (const RandomHybrid& model : {RandomHybrid{.mtp = true, .seed = 25},
                                    RandomHybrid{.num_experts = 16,
                                                 .num_chosen = 4,
                                                 .key_dim = 128,
                                                 .value_dim = 128,
                                                 .mtp = true,
                                                 .seed = 26}}) {
    SCOPED_TRACE(model.num_experts);
    const test::TempDir dir;
    expect_same_tokens(
        model.write(dir),
        model.vocab_size,
        "native",
        [](int32_t num_drafts, bool adaptive) { return test::mtp_config(num_drafts, adaptive); },
        /*drafter_is_right=*/false);
  }
}

// A model that drafts for itself, with the same bits in forwards of one token and of many.
TEST_F(CudaDrafts, DraftsForItselfAreRight) {
  const test::TempDir dir;
  RigOptions options = invariant_options(RandomModel{.seed = 21}.write(dir));
  options.config.max_model_len = 512;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 64;
  options.config.speculative_config = test::draft_model_config(options.config.model, 5);
  ModelRig rig(options);
  constexpr int32_t kRequests = 6;
  for (int32_t id = 1; id <= kRequests; ++id) {
    Request request;
    request.id = static_cast<uint64_t>(id);
    for (int32_t i = 0; i < 17 * id; ++i) {
      request.prompt.push_back((i * i + 31 * id) % 500);
    }
    request.max_tokens = 150;
    rig.add(request);
  }
  rig.run();
  const SchedulerStats stats = rig.scheduler().stats();
  EXPECT_GT(stats.num_partial_prefill_steps, 0);
  EXPECT_GE(stats.num_accepted_tokens, stats.num_drafted_tokens - kRequests * 2 * 5);
  EXPECT_GT(rig.num_steps(GraphMode::kFull), 10);
}

// Drafts that are drawn, and verified by ratio: a seed has the same tokens alone, beside others, in chunks and from graphs.
// Those of the model itself, whose p and q are the same bits, are all accepted, but what lies behind a request's end.
TEST_F(CudaDrafts, ByRatio) {
  const test::TempDir dir;
  const test::TempDir other_dir;
  RigOptions base = invariant_options(RandomModel{.seed = 21}.write(dir));
  base.config.max_model_len = 256;
  base.config.max_num_seqs = 8;
  base.config.max_num_batched_tokens = 128;
  base.config.enable_prefix_caching = false;
  const std::string other = RandomModel{.seed = 22}.write(other_dir);
  std::vector<Request> requests;
  for (int32_t id = 1; id <= 6; ++id) {
    Request& request = requests.emplace_back();
    request.id = static_cast<uint64_t>(id);
    for (int32_t i = 0; i < 9 * id; ++i) {
      request.prompt.push_back((i * i + 31 * id) % 500);
    }
    request.max_tokens = 40 + id;
    request.params.temperature = 0.8F + 0.1F * static_cast<float>(id);
    request.params.top_k = id % 3 == 0 ? 40 : 0;
    request.params.top_p = id % 2 == 0 ? 0.9F : 1.0F;
    request.params.seed = request.id;
  }
  constexpr int32_t kDrafts = 3;
  for (const std::string& drafter : {base.config.model, other}) {
    const bool itself = drafter == base.config.model;
    base.config.speculative_config = test::by_ratio(test::draft_model_config(drafter, kDrafts));
    std::map<uint64_t, std::vector<TokenId>> alone;
    for (const Request& request : requests) {
      ModelRig rig(base);
      rig.add(request);
      alone[request.id] = rig.run().at(request.id).tokens;
    }
    for (const char* graphs : {"none", "full"}) {
      for (const int32_t most : {24, 128}) {
        SCOPED_TRACE(std::string(graphs) + " " + std::to_string(most) + (itself ? " itself" : ""));
        RigOptions options = base;
        options.config.cudagraph_mode = graphs;
        options.config.max_num_batched_tokens = most;
        ModelRig rig(options);
        for (const Request& request : requests) {
          rig.add(request);
        }
        for (const auto& [id, result] : rig.run()) {
          EXPECT_EQ(result.tokens, alone.at(id)) << "request " << id;
        }
        const SchedulerStats stats = rig.scheduler().stats();
        const int64_t cut_off = static_cast<int64_t>(requests.size()) * 2 * kDrafts;
        EXPECT_GT(stats.num_accepted_tokens, stats.num_drafted_tokens / 10);
        EXPECT_EQ(stats.num_accepted_tokens >= stats.num_drafted_tokens - cut_off, itself);
        rig.scheduler().check_invariants();
      }
    }
  }
}

}  // namespace
}  // namespace warprow
