// SPDX-License-Identifier: Apache-2.0
// The invariance matrix: one workload under every configuration must give the same tokens and logprobs. Each axis names
// the counter that proves it was active. A feature that could change results adds its axis here.
#include "files/model_files.h"
#include "tests/support/eagle_case.h"
#include "tests/support/invariance_load.h"
#include "tests/support/known_drafts.h"
#include "tests/support/model_rig.h"
#include "tests/support/mtp_case.h"
#include "tests/support/random_hybrid.h"
#include "tests/support/rig_grammars.h"
#include "tests/support/source_path.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Answers;
using test::answers_of;
using test::base_options;
using test::DraftKind;
using test::expect_same;
using test::grammar_of;
using test::KnownDrafts;
using test::make_requests;
using test::ModelRig;
using test::RigOptions;
using test::RigResult;
using test::Workload;

// Every request alone, synchronously, on the inline stream.
Answers reference(const Workload& load) {
  RigOptions options = base_options(load);
  options.config.async_scheduling = false;
  options.device.mode = cpu::CpuStreamMode::kInline;
  ModelRig rig(options);
  const std::vector<Request> requests = make_requests(load);
  for (const Request& request : requests) {
    test::add_request(rig, request, &grammar_of(load));
    rig.run();
  }
  EXPECT_EQ(rig.scheduler().stats().num_mixed_steps, 0);
  return answers_of(requests, rig.results());
}

struct InvarianceAxis {
  std::string name;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

// A KV cache for about two requests, so that requests preempt each other.
int64_t few_blocks_bytes(const Workload& load, const std::string& speculation = "") {
  EngineConfig config = base_options(load).config;
  config.speculative_config = speculation;
  const ModelPlan plan = value_or_throw(plan_model(config, this_machine()));
  int64_t blocks = 0;
  for (const KvGroupSpec& group : plan.kv.groups) {
    blocks += 10 + 12 * group.num_state_cells();  // of a dozen rows
  }
  return blocks * plan.kv_cache.block_bytes();
}

// Token pages for one request of the largest length: requests preempt each other although KV blocks are plenty.
void set_few_pages(RigOptions& options) {
  options.config.max_model_len = 128;
  options.runner.token_pages = {.page_size = 4, .num_pages = 36};
}

std::vector<InvarianceAxis> axes(const Workload& load) {
  const auto mixed = [](ModelRig& rig) { return rig.scheduler().stats().num_mixed_steps > 0; };
  const auto partial = [](ModelRig& rig) {
    return rig.scheduler().stats().num_partial_prefill_steps > 0;
  };
  const int64_t few_blocks = few_blocks_bytes(load);
  const size_t groups =
      value_or_throw(plan_model(base_options(load).config, this_machine())).kv.groups.size();
  return {
      {"together", [](RigOptions&) {}, mixed},
      {"sync",
       [](RigOptions& o) { o.config.async_scheduling = false; },
       [](ModelRig& rig) { return rig.executor().stats().max_steps_in_flight == 1; }},
      {"async",
       [](RigOptions& o) { o.config.async_scheduling = true; },
       [](ModelRig& rig) { return rig.executor().stats().max_steps_in_flight == 2; }},
      {"chunk_16",
       [](RigOptions& o) {
         o.config.max_num_seqs = 8;
         o.config.max_num_batched_tokens = 16;
       },
       partial},
      {"chunk_64", [](RigOptions& o) { o.config.max_num_batched_tokens = 64; }, partial},
      {"chunk_unlimited",
       [](RigOptions& o) { o.config.max_num_batched_tokens = 8192; },
       [](ModelRig& rig) { return rig.scheduler().stats().num_partial_prefill_steps == 0; }},
      {"prefix_caching",
       [](RigOptions& o) { o.config.enable_prefix_caching = true; },
       [](ModelRig& rig) { return rig.scheduler().stats().num_prefix_hit_tokens > 0; }},
      {"block_32",
       [](RigOptions& o) { o.config.block_size = 32; },
       [](ModelRig& rig) { return rig.executor().model_facts().kv.groups[0].block_size == 32; }},
      {"block_32_over_16",
       [](RigOptions& o) {
         o.config.block_size = 32;
         o.config.kernel_block_size = 16;
       },
       [](ModelRig& rig) {
         return rig.executor().model_facts().kv.groups[0].kernel_blocks_per_block() == 2;
       }},
      {"layout_nhd",
       [](RigOptions& o) { o.config.kv_cache_layout = "nhd"; },
       [](ModelRig& rig) {
         return rig.executor().model_facts().kv.groups[0].layout.order == KvOrder::kNHD;
       }},
      {"backends_by_layer",  // the same backend under two names, so layers are in separate groups
       [](RigOptions& o) { o.config.attention_backend = "cpu_paged:0,auto"; },
       [groups](ModelRig& rig) { return rig.executor().model_facts().kv.groups.size() > groups; }},
      {"preemption",
       [few_blocks](RigOptions& o) {
         o.config.max_model_len = 128;
         o.config.kv_cache_memory_bytes = few_blocks;
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_preemptions > 0; }},
      {"preemption_with_prefix_caching",
       [few_blocks](RigOptions& o) {
         o.config.max_model_len = 128;
         o.config.kv_cache_memory_bytes = few_blocks;
         o.config.enable_prefix_caching = true;
       },
       [](ModelRig& rig) {
         return rig.scheduler().stats().num_preemptions > 0 &&
                rig.scheduler().stats().num_prefix_hit_tokens > 0;
       }},
      {"few_pages",
       set_few_pages,
       [](ModelRig& rig) { return rig.scheduler().stats().num_preemptions > 0; }},
      {"deferred_shuffled",
       [](RigOptions& o) {
         o.device.mode = cpu::CpuStreamMode::kDeferred;
         o.device.shuffle = true;
         o.device.seed = 11;
       },
       [](ModelRig& rig) { return rig.device().options().shuffle; }},
      {"two_threads",
       [](RigOptions& o) { o.device.num_threads = 2; },
       [](ModelRig& rig) { return rig.device().facts().num_threads == 2; }},
      {"graph_full",
       [](RigOptions& o) {
         o.config.cudagraph_mode = "full";
         o.config.cudagraph_capture_sizes = "8,128";
       },
       [mixed](ModelRig& rig) {
         const ExecutorStats stats = rig.executor().stats();
         return stats.graphs_full > 10 && stats.graphs_piecewise == 0 && stats.padded_toks > 0 &&
                mixed(rig);
       }},
      {"graph_piecewise",
       [](RigOptions& o) {
         o.config.cudagraph_mode = "piecewise";
         o.config.cudagraph_capture_sizes = "8,128";
       },
       [mixed](ModelRig& rig) {
         const ExecutorStats stats = rig.executor().stats();
         return stats.graphs_piecewise > 3 && stats.padded_toks > 0 && mixed(rig);
       }},
      {"serialised", [](RigOptions& o) { o.serialize = true; }, mixed},
      {"late_masks",
       // Later than the end of a forward, even on a busy machine.
       [&load](RigOptions& o) {
         o.config.grammar_mask_delay_us = load.vocab_size < 1000 ? 15'000 : 200'000;
       },
       [](ModelRig& rig) { return rig.num_withheld() > 0; }},
      {"guarded_memory",
       [](RigOptions& o) {
         o.device.mode = cpu::CpuStreamMode::kInline;
         o.device.guard_arenas = true;
       },
       [](ModelRig& rig) { return rig.device().options().guard_arenas; }},
  };
}

// Drafts of a proposer that knows the answers, verified by match: the same tokens in fewer steps.
struct DraftAxis {
  std::string name;
  DraftKind kind;
  int32_t num_drafts;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

std::vector<DraftAxis> draft_axes(const Workload& load) {
  const auto any = [](ModelRig&) { return true; };
  const int64_t few_blocks = few_blocks_bytes(load);
  return {
      {"right_1", DraftKind::kRight, 1, [](RigOptions&) {}, any},
      {"right_4_sync",
       DraftKind::kRight,
       4,
       [](RigOptions& o) { o.config.async_scheduling = false; },
       [](ModelRig& rig) { return rig.executor().stats().max_steps_in_flight == 1; }},
      {"wrong_2", DraftKind::kWrong, 2, [](RigOptions&) {}, any},
      {"mixed_3_prefix_caching",
       DraftKind::kMixed,
       3,
       [](RigOptions& o) { o.config.enable_prefix_caching = true; },
       [](ModelRig& rig) { return rig.scheduler().stats().num_prefix_hit_tokens > 0; }},
      {"mixed_2_chunk_16",
       DraftKind::kMixed,
       2,
       [](RigOptions& o) {
         o.config.max_num_seqs = 8;
         o.config.max_num_batched_tokens = 16;
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_partial_prefill_steps > 0; }},
      {"wrong_2_preemption",  // rows need as many steps as without drafts
       DraftKind::kWrong,
       2,
       [few_blocks](RigOptions& o) {
         o.config.max_model_len = 128;
         o.config.kv_cache_memory_bytes = few_blocks;
         o.config.enable_prefix_caching = true;
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_preemptions > 0; }},
      {"mixed_4_few_blocks",
       DraftKind::kMixed,
       4,
       [few_blocks](RigOptions& o) {
         o.config.max_model_len = 128;
         o.config.kv_cache_memory_bytes = few_blocks * 9 / 10;
         o.config.enable_prefix_caching = true;
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_prefix_hit_tokens > 0; }},
      {"mixed_2_few_pages",
       DraftKind::kMixed,
       2,
       set_few_pages,
       [](ModelRig& rig) { return rig.scheduler().stats().num_preemptions > 0; }},
      {"mixed_3_deferred_shuffled",
       DraftKind::kMixed,
       3,
       [](RigOptions& o) {
         o.device.mode = cpu::CpuStreamMode::kDeferred;
         o.device.shuffle = true;
         o.device.seed = 12;
       },
       [](ModelRig& rig) { return rig.device().options().shuffle; }},
      {"mixed_2_graph_full",
       DraftKind::kMixed,
       2,
       [](RigOptions& o) {
         o.config.cudagraph_mode = "full";
         o.config.cudagraph_capture_sizes = "6,24,96,128";
       },
       [](ModelRig& rig) { return rig.executor().stats().graphs_full > 2; }},
      {"right_3_graph_piecewise",
       DraftKind::kRight,
       3,
       [](RigOptions& o) {
         o.config.cudagraph_mode = "piecewise";
         o.config.cudagraph_capture_sizes = "8,128";
       },
       [](ModelRig& rig) { return rig.executor().stats().graphs_piecewise > 3; }},
      {"mixed_3_late_masks",
       DraftKind::kMixed,
       3,
       [&load](RigOptions& o) {
         o.config.grammar_mask_delay_us = load.vocab_size < 1000 ? 15'000 : 200'000;
       },
       [](ModelRig& rig) { return rig.num_withheld() > 0; }},
      {"mixed_3_serialised", DraftKind::kMixed, 3, [](RigOptions& o) { o.serialize = true; }, any},
  };
}

// Whether the number of accepted drafts fits the number of right ones.
bool accepted_as_proposed(DraftKind kind, const SchedulerStats& stats) {
  switch (kind) {
    case DraftKind::kRight:  // drafts after an answer's end are wrong
      return 2 * stats.num_accepted_tokens > stats.num_drafted_tokens;
    case DraftKind::kWrong:
      return stats.num_accepted_tokens == 0;
    case DraftKind::kMixed:
      return stats.num_accepted_tokens > 0 && stats.num_accepted_tokens < stats.num_drafted_tokens;
  }
  return false;
}

void expect_same_with_drafts(const Workload& load, const Answers& expected) {
  const std::vector<Request> requests = make_requests(load);
  ModelRig plain(base_options(load));
  for (const Request& request : requests) {
    test::add_request(plain, request, &grammar_of(load));
  }
  plain.run();
  const int64_t plain_steps = plain.executor().stats().steps;
  for (const DraftAxis& axis : draft_axes(load)) {
    SCOPED_TRACE("drafts_" + axis.name);
    KnownDrafts known(axis.kind, 7);
    for (const Request& request : requests) {
      known.expect(request, expected.at(request.id).tokens);
    }
    RigOptions options = base_options(load);
    options.runner.max_drafts = axis.num_drafts;
    options.runner.features.extra = {known.factory()};
    axis.set(options);
    ModelRig rig(options);
    for (const Request& request : requests) {
      test::add_request(rig, request, &grammar_of(load));
    }
    expect_same(expected, answers_of(requests, rig.run()));
    EXPECT_TRUE(axis.was_active(rig)) << "the axis had no effect";
    const SchedulerStats stats = rig.scheduler().stats();
    EXPECT_GT(stats.num_drafted_tokens, 0);
    EXPECT_TRUE(accepted_as_proposed(axis.kind, stats))
        << stats.num_accepted_tokens << " of " << stats.num_drafted_tokens;
    if (axis.name == "right_1") {  // saves nearly half of the decode steps
      EXPECT_LT(4 * rig.executor().stats().steps, 3 * plain_steps);
    }
    rig.scheduler().check_invariants();
  }
}

// Drafts of a real proposer, as a setting: the row's own tokens.
struct ProposerAxis {
  std::string name;
  int32_t num_drafts;
  bool adaptive;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

std::vector<ProposerAxis> proposer_axes(const Workload& load) {
  const auto any = [](ModelRig&) { return true; };
  return {
      {"1_sync", 1, false, [](RigOptions& o) { o.config.async_scheduling = false; }, any},
      {"3_chunk_16",
       3,
       false,
       [](RigOptions& o) {
         o.config.max_num_seqs = 8;
         o.config.max_num_batched_tokens = 16;
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_partial_prefill_steps > 0; }},
      {"7_few_blocks",
       7,
       false,
       [load](RigOptions& o) {
         o.config.max_model_len = 128;
         o.config.kv_cache_memory_bytes = few_blocks_bytes(load, o.config.speculative_config);
         o.config.enable_prefix_caching = true;
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_prefix_hit_tokens > 0; }},
      {"3_graph_full_deferred_shuffled",
       3,
       false,
       [](RigOptions& o) {
         o.config.cudagraph_mode = "full";
         o.config.cudagraph_capture_sizes = "8,32,128";
         o.device.mode = cpu::CpuStreamMode::kDeferred;
         o.device.shuffle = true;
         o.device.seed = 13;
       },
       [](ModelRig& rig) { return rig.executor().stats().graphs_full > 2; }},
      {"7_adaptive",
       7,
       true,
       [](RigOptions& o) { o.serialize = true; },
       [](ModelRig& rig) { return rig.scheduler().stats().num_undrafted > 0; }},
  };
}

// config: the setting of a method with a number of drafts, adaptive or not.
void expect_same_with_proposer(
    const Workload& load,
    const Answers& expected,
    const std::string& method,
    const std::function<std::string(int32_t num_drafts, bool adaptive)>& config) {
  const std::vector<Request> requests = make_requests(load);
  int64_t num_accepted = 0;
  int64_t num_drafted = 0;
  for (const ProposerAxis& axis : proposer_axes(load)) {
    SCOPED_TRACE(method + "_" + axis.name);
    RigOptions options = base_options(load);
    options.config.speculative_config = config(axis.num_drafts, axis.adaptive);
    axis.set(options);
    ModelRig rig(options);
    for (const Request& request : requests) {
      test::add_request(rig, request, &grammar_of(load));
    }
    expect_same(expected, answers_of(requests, rig.run()));
    EXPECT_TRUE(axis.was_active(rig)) << "the axis had no effect";
    num_accepted += rig.scheduler().stats().num_accepted_tokens;
    num_drafted += rig.scheduler().stats().num_drafted_tokens;
    rig.scheduler().check_invariants();
  }
  EXPECT_GT(num_accepted, 0);
  EXPECT_LT(num_accepted, num_drafted);
}

// The token rules must change the results of their requests; otherwise no axis would test them.
void expect_token_rules_matter(const Workload& load, const Answers& expected) {
  ModelRig rig(base_options(load));
  for (Request request : make_requests(load)) {
    EXPECT_GE(static_cast<int32_t>(expected.at(request.id).tokens.size()),
              request.params.min_tokens);
    request.params.repetition_penalty = 1.0F;
    request.params.frequency_penalty = request.params.presence_penalty = 0.0F;
    request.params.min_tokens = 0;
    request.params.flags = 0;
    rig.add(request);
  }
  const std::map<uint64_t, RigResult>& without = rig.run();
  bool penalties_matter = false;
  bool least_length_matters = false;
  bool token_lists_matter = false;
  bool grammars_matter = false;
  for (const Request& request : make_requests(load)) {
    const bool differs = without.at(request.id).tokens != expected.at(request.id).tokens;
    penalties_matter |= differs && request.params.repetition_penalty != 1.0F;
    least_length_matters |= differs && request.params.min_tokens > 0;
    token_lists_matter |= differs && request.params.has_token_lists();
    grammars_matter |= differs && test::has_grammar(request);
  }
  EXPECT_TRUE(penalties_matter);
  EXPECT_TRUE(least_length_matters);
  EXPECT_TRUE(token_lists_matter);
  EXPECT_TRUE(grammars_matter);
}

void expect_invariant(const Workload& load) {
  const Answers expected = reference(load);
  ASSERT_EQ(expected.size(), static_cast<size_t>(load.num_requests));
  const auto has_top = [](const auto& entry) { return !entry.second.top.empty(); };
  EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), has_top));
  if (load.vocab_size < 1000) {  // the few short answers of a real model trigger neither rule
    expect_token_rules_matter(load, expected);
  }
  for (const InvarianceAxis& axis : axes(load)) {
    SCOPED_TRACE(axis.name);
    if (axis.name == "guarded_memory" && load.vocab_size > 1000) {
      // Changing the protection of a large model's pages around every launch takes minutes. The tiny models cover this
      // axis.
      continue;
    }
    RigOptions options = base_options(load);
    axis.set(options);
    ModelRig rig(options);
    const std::vector<Request> requests = make_requests(load);
    for (const Request& request : requests) {
      test::add_request(rig, request, &grammar_of(load));
    }
    expect_same(expected, answers_of(requests, rig.run()));
    EXPECT_TRUE(axis.was_active(rig)) << "the axis had no effect";
    rig.scheduler().check_invariants();
  }
  expect_same_with_drafts(load, expected);
  expect_same_with_proposer(load, expected, "ngram", test::ngram_config);
  if (load.vocab_size < 1000) {  // for a real model: draft_steps_test.cpp, draft_model_test.cpp
    expect_same_with_proposer(load, expected, "suffix", test::suffix_config);
    expect_same_with_proposer(
        load, expected, "draft_model", [&load](int32_t num_drafts, bool adaptive) {
          return test::draft_model_config(load.model, num_drafts, adaptive);
        });
  }
}

TEST(Invariance, TinyModel) {
  expect_invariant({test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf"),
                    "float32",
                    128,
                    32,
                    100,
                    24});
}

// Heads that draft from hidden states need a model of their width.
TEST(Invariance, HeadsThatDraft) {
  const Workload load{test::head_target().path(), "float32", test::kHeadTestVocab, 16, 60, 16};
  const Answers expected = reference(load);
  for (const test::HeadFormat format : {test::HeadFormat::kEagle3, test::HeadFormat::kEagle}) {
    const test::HeadFiles head(format, format == test::HeadFormat::kEagle3 ? 8 : 0);
    expect_same_with_proposer(
        load, expected, head.method(), [&head](int32_t num_drafts, bool adaptive) {
          return test::head_config(head.method(), head.dir.path().string(), num_drafts, adaptive);
        });
  }
}

// Layers of a model's own checkpoint that predict further tokens, in both layouts.
TEST(Invariance, LayersThatPredict) {
  for (const test::MtpFamily family : {test::MtpFamily::kGlm4Moe, test::MtpFamily::kQwen35}) {
    const test::MtpFiles files(family);
    const Workload load{files.path(), "float32", test::kHeadTestVocab, 16, 60, 16};
    expect_same_with_proposer(load, reference(load), "mtp", test::mtp_config);
  }
}

// The same beside layers that keep a state, which takes in accepted drafts only; and the row's own tokens as drafts.
TEST(Invariance, LayersThatPredictBesideStates) {
  test::RandomHybrid model;
  model.hidden_size = model.intermediate_size = 64;
  model.num_key_heads = 1;
  model.num_value_heads = 2;
  model.key_dim = model.value_dim = 32;
  model.vocab_size = 128;
  model.mtp = true;
  const test::TempDir dir;
  const Workload load{model.write(dir), "float32", 128, 24, 80, 16};
  const Answers expected = reference(load);
  expect_same_with_proposer(load, expected, "mtp", test::mtp_config);
  expect_same_with_proposer(load, expected, "ngram", test::ngram_config);
}

TEST(Invariance, TwoKvGroups) {
  expect_invariant(
      {test::source_path("tests/golden/tiny/qwen3_two_groups"), "bfloat16", 128, 32, 100, 24});
}

// Soft caps on scores and logits, windows in every second layer, norms behind attention and feed-forward.
TEST(Invariance, SoftCapsAndWindows) {
  expect_invariant({test::source_path("tests/golden/tiny/gemma2"), "bfloat16", 128, 32, 100, 24});
}

TEST(Invariance, Experts) {
  expect_invariant({test::source_path("tests/golden/tiny/qwen3_moe"), "auto", 128, 32, 100, 24});
}

// Sinks, a window in every second layer, experts with biases in MXFP4.
TEST(Invariance, SinksAndMxfp4) {
  expect_invariant(
      {test::source_path("tests/golden/tiny/gpt_oss_mxfp4"), "auto", 128, 32, 100, 24});
}

// Windows, soft caps, and keys and values of 8 bits.
TEST(Invariance, EightBitKvCache) {
  const Workload load{
      test::source_path("tests/golden/tiny/gemma2"), "bfloat16", 128, 32, 100, 24, "fp8_e4m3"};
  expect_invariant(load);
}

// The production settings: int8 activations, bf16 cache, a real vocabulary.
TEST(Invariance, SmolLm2) {
  if (!resolve_model("smollm2")) {
    GTEST_SKIP() << "smollm2 is not in the cache: run ./dev demo or ./dev test";
  }
  expect_invariant({"smollm2", "auto", 49152, 8, 90, 12});
}

}  // namespace
}  // namespace warprow
