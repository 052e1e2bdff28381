// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/invariance_load.h"
#include "tests/support/known_drafts.h"
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

// A model that several ranks divide, as tensor_parallel_test.cpp and pipeline_test.cpp run it: the workload and the
// configurations that both try.
namespace warprow::test {

// How many ranks divide each layer, and how many groups of them the list of layers.
struct Sizes {
  int32_t tensor = 1;
  int32_t pipeline = 1;
};

inline Workload tiny(const std::string& model, int32_t num_requests) {
  return {source_path("tests/golden/tiny/") + model, "float32", 128, num_requests, 100, 24};
}

inline RigOptions options_of(const Workload& load, const Sizes& sizes) {
  RigOptions options = base_options(load);
  options.config.tensor_parallel_size = sizes.tensor;
  options.config.pipeline_parallel_size = sizes.pipeline;
  options.config.enable_hidden_states = true;
  return options;
}

struct Outcome {
  Answers answers;
  std::map<uint64_t, RigResult> results;
};

// Runs the workload. Some requests also ask for logprobs of their prompt (set_every_rule) or for hidden states.
inline Outcome run(ModelRig& rig, const Workload& load) {
  std::vector<Request> requests = make_requests(load);
  for (Request& request : requests) {
    if (request.id % 7 == 0) {
      request.params.flags |= SamplingParams::kOutputHidden;
    }
    add_request(rig, request, &grammar_of(load));
  }
  const auto& results = rig.run();
  rig.scheduler().check_invariants();
  return {answers_of(requests, results), results};
}

inline void expect_same(const Outcome& expected, const Outcome& other) {
  expect_same(expected.answers, other.answers);
  for (const auto& [id, result] : expected.results) {
    const RigResult& mine = other.results.at(id);
    EXPECT_EQ(result.reason, mine.reason) << id;
    EXPECT_EQ(result.prompt_top, mine.prompt_top) << id;
    EXPECT_EQ(result.hidden, mine.hidden) << id;
  }
}

struct Axis {
  std::string name;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

inline Axis chunks_and_few_blocks(int32_t num_blocks) {
  return {"chunks_and_few_blocks",
          [num_blocks](RigOptions& o) {
            const ModelPlan plan = value_or_throw(plan_model(o.config, this_machine()));
            o.config.kv_cache_memory_bytes = num_blocks * plan.kv_cache.block_bytes();
            o.config.max_model_len = 128;
            o.config.max_num_seqs = 8;
            o.config.max_num_batched_tokens = 16;
            o.config.enable_prefix_caching = true;
          },
          [](ModelRig& rig) {
            const SchedulerStats stats = rig.scheduler().stats();
            return stats.num_preemptions > 0 && stats.num_prefix_hit_tokens > 0 &&
                   stats.num_partial_prefill_steps > 0;
          }};
}

inline Axis graphs(const char* mode) {
  return {mode,
          [mode](RigOptions& o) {
            o.config.cudagraph_mode = mode;
            o.config.cudagraph_capture_sizes = "6,24,128";
          },
          [](ModelRig& rig) {
            const ExecutorStats stats = rig.executor().stats();
            return stats.graphs_full + stats.graphs_piecewise > 10 && stats.padded_toks > 0;
          }};
}

inline Axis sync_with_late_masks(const Sizes& sizes) {
  return {"sync_with_late_masks",
          [](RigOptions& o) {
            o.config.async_scheduling = false;
            o.config.grammar_mask_delay_us = 15'000;
          },
          [sizes](ModelRig& rig) {
            return rig.num_withheld() > 0 &&
                   rig.executor().stats().max_steps_in_flight == sizes.pipeline;
          }};
}

inline Axis deferred_and_serialised() {
  return {"deferred_and_serialised",
          [](RigOptions& o) {
            o.device.mode = cpu::CpuStreamMode::kDeferred;
            o.device.shuffle = true;
            o.device.seed = 11;
            o.serialize = true;
          },
          [](ModelRig& rig) { return rig.device().options().shuffle; }};
}

// Runs the workload with the sizes under each axis. Every answer is that of `expected`, bit for bit.
inline void expect_same_under(const std::vector<Axis>& axes,
                              const Workload& load,
                              const Sizes& sizes,
                              const Outcome& expected) {
  for (const Axis& axis : axes) {
    SCOPED_TRACE(axis.name);
    RigOptions options = options_of(load, sizes);
    axis.set(options);
    ModelRig rig(options);
    expect_same(expected, run(rig, load));
    EXPECT_TRUE(axis.was_active(rig)) << "the axis had no effect";
  }
}

// Drafts of the answers that one rank gives.
inline KnownDrafts known_drafts(const Workload& load) {
  ModelRig alone(options_of(load, {}));
  const Outcome expected = run(alone, load);
  KnownDrafts known(DraftKind::kMixed, 7);
  for (const Request& request : make_requests(load)) {
    known.expect(request, expected.answers.at(request.id).tokens);
  }
  return known;
}

}  // namespace warprow::test
