// SPDX-License-Identifier: Apache-2.0
// The invariance matrix on CUDA: one workload under every configuration. Results are equal bit for bit under
// batch invariance, the default on Hopper, and within the gap rule without. Each axis names the counter that proves it was active.
#include "base/error.h"
#include "tests/support/gap_rule.h"
#include "tests/support/model_rig.h"
#include "tests/support/quantised_model.h"
#include "tests/support/random_hybrid.h"
#include "tests/support/random_model.h"
#include "tests/support/rig_grammars.h"
#include "tests/support/rig_rules.h"
#include "text/byte_text.h"
#include "wire/token_lists.h"

#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::add_request;
using test::expect_follows;
using test::GapCounts;
using test::has_grammar;
using test::ModelRig;
using test::RandomHybrid;
using test::RandomModel;
using test::RigOptions;
using test::RigResult;
using test::TempDir;

struct Workload {
  int32_t num_requests = 24;
  int32_t max_prompt = 100;
  int32_t max_tokens = 24;
  bool rules = false;  // false: all requests are greedy
};

// Allows every other token. Some of them are biased and some are bad words.
TokenLists half_of(int32_t vocab_size) {
  TokenLists lists;
  for (TokenId id = 0; id < vocab_size; id += 2) {
    lists.allowed.push_back(id);
    if (id % 12 == 0) {
      lists.biases.emplace_back(id, id % 24 == 0 ? 1.5F : -1.5F);
    }
    if (id % 14 == 0) {
      lists.bad_words.push_back({id});
    }
  }
  return lists;
}

// Prompts of mixed length, half of them with a common prefix. With rules, every other request is sampled with a seed,
// every fifth has penalties, every sixth has token lists and prompt logprobs, every eighth has all of these and more,
// and every fifth has a grammar (rig_grammars.h).
std::vector<Request> make_requests(int32_t vocab_size, const Workload& load) {
  std::vector<Request> requests = test::mixed_requests({.num_requests = load.num_requests,
                                                        .max_prompt = load.max_prompt,
                                                        .max_tokens = load.max_tokens,
                                                        .vocab_size = vocab_size});
  for (int32_t i = 0; i < load.num_requests; ++i) {
    Request& request = requests[static_cast<size_t>(i)];
    request.params.num_logprobs = 5;
    if (load.rules && i % 4 >= 2) {
      test::set_drawing(request.params, i);
    }
    if (load.rules && i % 5 == 3) {
      request.params.repetition_penalty = 1.3F;
      request.params.presence_penalty = 0.6F;
    }
    if (load.rules && i % 6 == 1) {
      request.params.flags = SamplingParams::kHasTokenLists;
      request.token_lists = pack_token_lists(half_of(vocab_size));
      request.params.num_prompt_logprobs = 2;
    }
    if (load.rules && i % 8 == 5) {
      test::set_every_rule(request, vocab_size);
    }
  }
  return requests;
}

RigOptions base_options(const std::string& model) {
  RigOptions options;
  options.config.model = model;
  options.config.device = "cuda";
  options.config.kv_cache_memory_bytes = int64_t{64} << 20;
  options.config.max_model_len = 256;
  options.config.max_num_seqs = 32;
  options.config.max_num_batched_tokens = 128;
  options.config.enable_prefix_caching = false;
  return options;
}

using Results = std::map<uint64_t, RigResult>;

// Every request alone, synchronously, without graphs. grammar: the grammar of the requests that have one, or null.
Results reference(const RigOptions& base,
                  const std::vector<Request>& requests,
                  const Grammar* grammar = nullptr) {
  RigOptions options = base;
  options.config.async_scheduling = false;
  options.config.cudagraph_mode = "none";
  ModelRig rig(options);
  for (const Request& request : requests) {
    add_request(rig, request, grammar);
    rig.run();
  }
  EXPECT_EQ(rig.scheduler().stats().num_mixed_steps, 0);
  EXPECT_EQ(rig.num_steps(GraphMode::kFull) + rig.num_steps(GraphMode::kPiecewise), 0);
  return rig.results();
}

struct Axis {
  std::string name;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

// Axes under which the same kernels compute each row.
std::vector<Axis> batch_axes() {
  const auto mixed = [](ModelRig& rig) { return rig.scheduler().stats().num_mixed_steps > 0; };
  const auto partial = [](ModelRig& rig) {
    return rig.scheduler().stats().num_partial_prefill_steps > 0;
  };
  const auto block_size = [](int32_t size, int32_t kernel) {
    return [=](ModelRig& rig) {
      const KvGroupSpec& group = rig.executor().model_facts().kv.groups[0];
      return group.block_size == size && group.kernel_block_size == kernel;
    };
  };
  const auto few_blocks = [](RigOptions& o) {
    o.config.max_model_len = 128;
    const int64_t element = o.config.kv_cache_dtype != "auto" ? 1
                            : o.config.dtype == "float32"     ? 4
                                                              : 2;
    o.config.kv_cache_memory_bytes =
        20 * 16 * int64_t{4} * 2 * 2 * 64 * element;  // 20 blocks of RandomModel
  };
  return {
      {"together", [](RigOptions&) {}, mixed},
      {"sync",
       [](RigOptions& o) { o.config.async_scheduling = false; },
       [](ModelRig& rig) { return rig.executor().stats().max_steps_in_flight == 1; }},
      {"async",
       [](RigOptions& o) { o.config.async_scheduling = true; },
       [](ModelRig& rig) { return rig.executor().stats().max_steps_in_flight == 2; }},
      {"graphs_none",
       [](RigOptions& o) { o.config.cudagraph_mode = "none"; },
       [](ModelRig& rig) {
         return rig.num_steps(GraphMode::kNone) > 0 && rig.executor().stats().graph_captures == 0;
       }},
      {"graphs_piecewise",
       [](RigOptions& o) { o.config.cudagraph_mode = "piecewise"; },
       [](ModelRig& rig) {
         return rig.num_steps(GraphMode::kPiecewise) > 0 && rig.num_steps(GraphMode::kFull) == 0 &&
                rig.executor().stats().graphs_piecewise > 0;
       }},
      {"graphs_full_and_piecewise",
       [](RigOptions& o) {
         o.config.cudagraph_mode = "full_and_piecewise";
         o.config.cudagraph_capture_sizes = "1,2,4,8,16,32,64,128";
       },
       [](ModelRig& rig) {
         return rig.num_steps(GraphMode::kPiecewise) > 0 && rig.num_steps(GraphMode::kFull) > 0 &&
                rig.executor().stats().graphs_full > 0;
       }},
      {"graphs_full_decode_only",
       [](RigOptions& o) { o.config.cudagraph_mode = "full_decode_only"; },
       [](ModelRig& rig) {
         return rig.num_steps(GraphMode::kPiecewise) == 0 && rig.num_steps(GraphMode::kFull) > 0;
       }},
      {"graphs_full",  // includes mixed steps
       [](RigOptions& o) {
         o.config.cudagraph_mode = "full";
         o.config.cudagraph_capture_sizes = "1,2,4,8,16,32,64,128";
       },
       [mixed](ModelRig& rig) {
         return rig.num_steps(GraphMode::kFull) > 0 && rig.num_steps(GraphMode::kPiecewise) == 0 &&
                rig.executor().stats().graphs_piecewise == 0 && mixed(rig);
       }},
      {"graphs_of_few_sizes",  // much padding, and steps too large for any graph
       [](RigOptions& o) { o.config.cudagraph_capture_sizes = "16,64"; },
       [](ModelRig& rig) {
         return rig.num_steps(GraphMode::kFull) > 0 && rig.num_steps(GraphMode::kNone) > 0;
       }},
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
      {"preemption",
       few_blocks,
       [](ModelRig& rig) { return rig.scheduler().stats().num_preemptions > 0; }},
      {"preemption_with_prefix_caching",
       [few_blocks](RigOptions& o) {
         few_blocks(o);
         o.config.enable_prefix_caching = true;
       },
       [](ModelRig& rig) {
         return rig.scheduler().stats().num_preemptions > 0 &&
                rig.scheduler().stats().num_prefix_hit_tokens > 0;
       }},
      {"few_pages",  // pages of 16 tokens, so that block tables move too
       [](RigOptions& o) {
         o.config.max_model_len = 1024;
         o.runner.token_pages = {.page_size = 16, .num_pages = 80};
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_preemptions > 0; }},
      {"block_32", [](RigOptions& o) { o.config.block_size = 32; }, block_size(32, 32)},
      {"block_64", [](RigOptions& o) { o.config.block_size = 64; }, block_size(64, 64)},
      {"block_128", [](RigOptions& o) { o.config.block_size = 128; }, block_size(128, 128)},
      {"block_128_over_16",
       [](RigOptions& o) {
         o.config.block_size = 128;
         o.config.kernel_block_size = 16;
       },
       block_size(128, 16)},
      {"layout_nhd",
       [](RigOptions& o) { o.config.kv_cache_layout = "nhd"; },
       [](ModelRig& rig) {
         return rig.executor().model_facts().kv.groups[0].layout.order == KvOrder::kNHD;
       }},
      {"layout_nhd_block_64",
       [](RigOptions& o) {
         o.config.kv_cache_layout = "nhd";
         o.config.block_size = 64;
       },
       [](ModelRig& rig) {
         return rig.executor().model_facts().kv.groups[0].layout.order == KvOrder::kNHD;
       }},
  };
}

// Batch axes for a model whose rows also have pages of states. The plan chooses its block size. So few rows have room for
// their states that none is preempted: tests/golden/hybrid_test.cpp has preemption, on a CPU.
std::vector<Axis> hybrid_axes() {
  std::vector<Axis> axes = batch_axes();
  std::erase_if(axes, [](const Axis& axis) {
    return axis.name.starts_with("preemption") || axis.name == "few_pages" ||
           axis.name == "block_128_over_16";
  });
  // A state would take in the token of a withheld row twice, so rows wait for their masks.
  axes.push_back({"late_masks",
                  [](RigOptions& o) { o.config.grammar_mask_delay_us = 6000; },
                  [](ModelRig& rig) { return rig.num_withheld() == 0; }});
  return axes;
}

// Axes that select other kernels.
Axis backend_axis(const std::string& name, const std::string& groups) {
  return {"backend_" + name,
          [name](RigOptions& o) { o.config.attention_backend = name; },
          [groups](ModelRig& rig) { return rig.attention_backends() == groups; }};
}
std::vector<Axis> backend_axes() {
  return {backend_axis("native", "native"),
          backend_axis("flashinfer", "flashinfer"),
          backend_axis("native:0-1,flashinfer", "native,flashinfer"),
          // Four groups. The last group's backend depends on the model's needs.
          {"backend_flashinfer:0,native:1-2",
           [](RigOptions& o) { o.config.attention_backend = "flashinfer:0,native:1-2"; },
           [](ModelRig& rig) {
             return rig.attention_backends().starts_with("flashinfer,native,native,");
           }},
          {"batch_invariant",
           [](RigOptions& o) { o.config.batch_invariant = true; },
           [](ModelRig& rig) { return rig.num_steps(GraphMode::kFull) > 0; }}};
}

class CudaInvariance : public ::testing::Test {
 protected:
  void SetUp() override {
    const cuda::Availability found = cuda::find_device();
    if (!found.why_not.empty()) {
      GTEST_SKIP() << found.why_not;
    }
  }

  static RandomModel model() { return {.seed = 21}; }
  static RandomModel expert_model() {
    return {.family = "qwen3_moe",
            .intermediate_size = 192,
            .num_experts = 16,
            .num_chosen = 4,
            .seed = 25};
  }
  static RandomModel window_model() { return {.family = "mistral", .window = 32, .seed = 23}; }

  // Runs the workload under each axis, on top of the base configuration.
  template <typename Check>
  static void for_each_axis(const RigOptions& base, const std::vector<Axis>& axes, Check check) {
    for (const Axis& axis : axes) {
      SCOPED_TRACE(axis.name);
      RigOptions options = base;
      axis.set(options);
      ModelRig rig(options);
      check(axis.name, rig);
      EXPECT_TRUE(axis.was_active(rig)) << "the axis had no effect";
      rig.scheduler().check_invariants();
    }
  }

  // Attention backend auto: with the default setting. Float32: without, since it is batch-invariant by itself.
  static void expect_equal_bits(RigOptions base,
                                const std::vector<Request>& requests,
                                const std::vector<Axis>& axes,
                                const Grammar* grammar = nullptr) {
    if (base.config.dtype == "float32") {
      base.config.batch_invariant = false;
    } else if (base.config.attention_backend != "auto") {
      base.config.batch_invariant = true;
    }
    const Results expected = reference(base, requests, grammar);
    for (const Request& request : requests) {
      if (grammar != nullptr && has_grammar(request)) {
        test::expect_in_grammar(expected.at(request.id).tokens, *grammar);
      }
    }
    for_each_axis(base, axes, [&](const std::string&, ModelRig& rig) {
      for (const Request& request : requests) {
        add_request(rig, request, grammar);
      }
      int32_t tokens_differ = 0;
      int32_t logprobs_differ = 0;
      for (const auto& [id, result] : rig.run()) {
        tokens_differ += result.tokens != expected.at(id).tokens ? 1 : 0;
        logprobs_differ += result.top != expected.at(id).top ? 1 : 0;
        logprobs_differ += result.prompt_top != expected.at(id).prompt_top ? 1 : 0;
      }
      EXPECT_EQ(tokens_differ, 0) << "requests";
      EXPECT_EQ(logprobs_differ, 0) << "requests";
    });
  }

  static void expect_equal_bits(const RandomModel& model,
                                const std::string& backend,
                                const std::string& dtype = "auto",
                                const std::string& kv_cache_dtype = "auto") {
    const TempDir dir;
    RigOptions base = base_options(model.write(dir));
    base.config.attention_backend = backend;
    base.config.dtype = dtype;
    base.config.kv_cache_dtype = kv_cache_dtype;
    const std::vector<Request> requests = make_requests(model.vocab_size, {.rules = true});
    const Grammar grammar = test::matrix_grammar(*value_or_throw(make_byte_text()));
    std::vector<Axis> axes = batch_axes();
    axes.push_back({"late_masks",  // later than the end of a model's forward
                    [](RigOptions& o) { o.config.grammar_mask_delay_us = 6000; },
                    [](ModelRig& rig) { return rig.num_withheld() > 0; }});
    expect_equal_bits(base, requests, axes, &grammar);
  }

  static void expect_equal_bits(const RandomHybrid& model, const std::string& dtype = "auto") {
    const TempDir dir;
    RigOptions base = base_options(model.write(dir));
    base.config.dtype = dtype;
    const std::vector<Request> requests = make_requests(model.vocab_size, {.rules = true});
    const Grammar grammar = test::matrix_grammar(*value_or_throw(make_byte_text()));
    expect_equal_bits(base, requests, hybrid_axes(), &grammar);
  }

  // Steps of thousands of tokens, which use other kernels and tiles. scheme: of quantised weights, or empty.
  static void expect_equal_bits_of_large_steps(const std::string& backend,
                                               const std::string& dtype = "auto",
                                               const std::string& scheme = "") {
    const RandomModel large{.num_heads = 16,
                            .num_kv_heads = 4,
                            .num_layers = 2,
                            .hidden_size = 1024,
                            .intermediate_size = 3072,
                            .vocab_size = 2048,
                            .seed = 22};
    const TempDir dir;
    const TempDir twin;
    RigOptions base = base_options(
        scheme.empty() ? large.write(dir)
                       : test::QuantisedModel{large, scheme, 128}.write(dir, twin).first);
    base.config.attention_backend = backend;
    base.config.dtype = dtype;
    base.config.max_model_len = 1024;
    base.config.max_num_batched_tokens = 4096;
    const auto chunks = [](int32_t size) {
      return Axis{
          "chunk_" + std::to_string(size),
          [size](RigOptions& o) { o.config.max_num_batched_tokens = size; },
          [](ModelRig& rig) { return rig.scheduler().stats().num_partial_prefill_steps > 0; }};
    };
    const Axis together{"together",
                        [](RigOptions&) {},
                        [](ModelRig& rig) { return rig.scheduler().stats().num_mixed_steps > 0; }};
    expect_equal_bits(
        base,
        make_requests(large.vocab_size, {.num_requests = 20, .max_prompt = 900, .max_tokens = 8}),
        {together, chunks(2048), chunks(300), chunks(32)});
  }

  static void expect_near(RigOptions base, const std::vector<Axis>& axes) {
    base.config.batch_invariant = false;
    const std::vector<Request> requests = make_requests(RandomModel{}.vocab_size, {});
    const Results expected = reference(base, requests);
    for_each_axis(base, axes, [&](const std::string& name, ModelRig& rig) {
      const GapCounts counts = expect_follows(rig, requests, expected, {});
      std::cout << "[ gap rule ] " << name << ": " << counts.positions << " positions, "
                << counts.flips << " near-ties, logprobs off by " << counts.mean << " on average, "
                << counts.worst << " at most\n";
    });
  }
};

TEST_F(CudaInvariance, EqualBitsByDefault) {
  if (cuda::find_device().facts.compute_capability != 90) {
    GTEST_SKIP() << "batch invariance is the default on Hopper";
  }
  expect_equal_bits(model(), "auto");
  expect_equal_bits_of_large_steps("auto");
}

// Rows that take their largest logit and report nothing need no logits: their steps leave the largest ones alone. Rows with
// drafts do, too.
TEST_F(CudaInvariance, GreedyTokensWithoutLogits) {
  if (cuda::find_device().facts.compute_capability != 90) {
    GTEST_SKIP() << "batch invariance is the default on Hopper";
  }
  const TempDir dir;
  for (const int32_t num_requests : {24, 150}) {
    RigOptions options = base_options(model().write(dir));
    options.config.kv_cache_memory_bytes = int64_t{512} << 20;
    options.config.max_num_seqs = 160;
    options.config.max_num_batched_tokens = 512;
    std::vector<Request> requests =
        make_requests(model().vocab_size, {.num_requests = num_requests});
    struct Way {
      bool logits;
      std::string speculation;
    };
    Results with_logits;
    for (const Way& way : {Way{true, ""}, Way{false, ""}, Way{false, test::ngram_config(3)}}) {
      SCOPED_TRACE(std::to_string(num_requests) + (way.logits ? " with logits " : " ") +
                   way.speculation);
      options.config.speculative_config = way.speculation;
      ModelRig rig(options);
      for (Request& request : requests) {
        request.params.num_logprobs = way.logits ? 5 : -1;
        add_request(rig, request, nullptr);
      }
      rig.run();
      const int64_t steps = std::stoll(rig.call("steps_with_maxima", ""));
      if (way.logits) {
        EXPECT_EQ(steps, 0);
        with_logits = rig.results();
        continue;
      }
      EXPECT_GT(steps, 0);
      EXPECT_EQ(rig.scheduler().stats().num_drafted_tokens > 0, !way.speculation.empty());
      ASSERT_EQ(rig.results().size(), requests.size());
      for (const auto& [id, result] : rig.results()) {
        EXPECT_EQ(result.tokens, with_logits.at(id).tokens) << "request " << id;
      }
    }
  }
}

TEST_F(CudaInvariance, EqualBitsWithNativeAttention) { expect_equal_bits(model(), "native"); }
TEST_F(CudaInvariance, EqualBitsWithFlashInfer) { expect_equal_bits(model(), "flashinfer"); }
TEST_F(CudaInvariance, EqualBitsOfWindowsWithNativeAttention) {
  expect_equal_bits(window_model(), "native");
}
TEST_F(CudaInvariance, EqualBitsOfEightBitKvCaches) {
  expect_equal_bits(model(), "native", "auto", "fp8_e4m3");
  expect_equal_bits(window_model(), "native", "auto", "fp8_e5m2");
}
TEST_F(CudaInvariance, FlashInferDoesNotPromiseEqualBitsOfWindows) {
  const TempDir dir;
  RigOptions base = base_options(window_model().write(dir));
  base.config.attention_backend = "flashinfer";
  base.config.batch_invariant = true;
  EXPECT_THROW(ModelRig{base}, StartupError);
}
TEST_F(CudaInvariance, EqualBitsOfExperts) { expect_equal_bits(expert_model(), "native"); }
TEST_F(CudaInvariance, EqualBitsOfFloat32Experts) {
  expect_equal_bits(expert_model(), "auto", "float32");
}
TEST_F(CudaInvariance, EqualBitsOfHybrids) {
  if (cuda::find_device().facts.compute_capability != 90) {
    GTEST_SKIP() << "batch invariance is the default on Hopper";
  }
  expect_equal_bits(RandomHybrid{.seed = 41});
}
TEST_F(CudaInvariance, EqualBitsOfHybridsWithExperts) {
  if (cuda::find_device().facts.compute_capability != 90) {
    GTEST_SKIP() << "batch invariance is the default on Hopper";
  }
  expect_equal_bits(RandomHybrid{.num_experts = 16, .num_chosen = 4, .seed = 42});
}
TEST_F(CudaInvariance, EqualBitsOfFloat32Hybrids) {
  expect_equal_bits(RandomHybrid{.seed = 43}, "float32");
}
TEST_F(CudaInvariance, EqualBitsOfTwoBackends) {
  expect_equal_bits(model(), "native:0-1,flashinfer");
}

TEST_F(CudaInvariance, EqualBitsOfFloat32) { expect_equal_bits(model(), "auto", "float32"); }
TEST_F(CudaInvariance, EqualBitsOfFloat32Windows) {
  expect_equal_bits(window_model(), "auto", "float32");
}
TEST_F(CudaInvariance, EqualBitsOfFloat32LargeSteps) {
  expect_equal_bits_of_large_steps("auto", "float32");
}

TEST_F(CudaInvariance, EqualBitsOfLargeStepsWithNativeAttention) {
  expect_equal_bits_of_large_steps("native");
}

TEST_F(CudaInvariance, EqualBitsOfLargeStepsWithFlashInfer) {
  expect_equal_bits_of_large_steps("flashinfer");
}

TEST_F(CudaInvariance, EqualBitsOfQuantisedWeights) {
  for (const char* scheme : {"fp8_block", "fp8_channel", "awq"}) {
    SCOPED_TRACE(scheme);
    expect_equal_bits_of_large_steps("auto", "auto", scheme);
  }
}

TEST_F(CudaInvariance, GapRuleOfBatches) {
  const TempDir dir;
  expect_near(base_options(model().write(dir)), batch_axes());
}

TEST_F(CudaInvariance, GapRuleOfBackends) {
  for (const RandomModel& model : {model(), window_model()}) {
    const TempDir dir;
    RigOptions base = base_options(model.write(dir));
    base.config.attention_backend = "native";
    std::vector<Axis> axes = backend_axes();
    if (model.window == 0) {
      axes.push_back(backend_axis("native+flashinfer", "native+flashinfer"));
    }
    expect_near(base, axes);
  }
}

}  // namespace
}  // namespace warprow
