// SPDX-License-Identifier: Apache-2.0
// Logprobs and hidden states of prompts. They must equal those of a request for each prefix of the prompt, bit for bit,
// however the prompt is cut into chunks.
#include "engine/grammar_source.h"
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"
#include "text/byte_text.h"
#include "wire/token_lists.h"

#include <functional>
#include <malloc.h>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;
using test::RigResult;

constexpr int32_t kVocab = 128;
constexpr int32_t kTop = 3;

RigOptions base_options() {
  RigOptions options;
  options.config.model = test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf");
  options.config.dtype = "float32";
  options.config.kv_cache_memory_bytes = int64_t{4} << 20;
  options.config.max_model_len = 128;
  options.config.max_num_seqs = 4;
  options.config.max_num_batched_tokens = 256;
  options.config.enable_prefix_caching = false;
  options.config.enable_hidden_states = true;
  options.config.threads = 1;
  options.device.num_threads = 1;
  return options;
}

std::vector<TokenId> random_tokens(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(3 + random() % (kVocab - 3));
  }
  return tokens;
}

Request request_of(uint64_t id, std::vector<TokenId> prompt, int32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

struct Known {
  std::vector<TokenLogprobs> logprobs;  // without spans into an output
  std::vector<RigResult::Top> top;
  std::vector<float> hidden;
};

void expect_known(const Known& want, const Known& got) {
  EXPECT_EQ(want.logprobs, got.logprobs);
  EXPECT_EQ(want.top, got.top);
  EXPECT_EQ(want.hidden, got.hidden);
}

Known known(const RigResult& result) {
  Known out{result.prompt_logprobs, result.prompt_top, result.hidden};
  for (TokenLogprobs& entry : out.logprobs) {
    entry.top = {};
  }
  return out;
}

// One request per prefix. Its only output is forced to be the prompt's next token.
Known reference(const std::vector<TokenId>& prompt, int32_t max_tokens) {
  RigOptions options = base_options();
  options.config.async_scheduling = false;
  ModelRig rig(options);
  Known out;
  for (size_t n = 1; n < prompt.size(); ++n) {
    Request request = request_of(n, {prompt.begin(), prompt.begin() + static_cast<int64_t>(n)}, 1);
    request.params.num_logprobs = kTop;
    request.params.flags = SamplingParams::kHasTokenLists | SamplingParams::kOutputHidden;
    TokenLists lists;
    lists.allowed = {prompt[n]};
    request.token_lists = pack_token_lists(lists);
    rig.add(request);
    const RigResult& result = rig.run().at(n);
    EXPECT_EQ(result.tokens.at(0), prompt[n]);
    out.logprobs.push_back(result.logprobs.at(0));
    out.logprobs.back().top = {};
    out.top.push_back(result.top.at(0));
    out.hidden.insert(out.hidden.end(), result.hidden.begin(), result.hidden.end());
  }
  Request whole = request_of(1000, prompt, max_tokens);
  whole.params.flags = SamplingParams::kOutputHidden;
  rig.add(whole);
  const RigResult& result = rig.run().at(1000);
  out.hidden.insert(out.hidden.end(), result.hidden.begin(), result.hidden.end());
  return out;
}

Request curious(uint64_t id, const std::vector<TokenId>& prompt, int32_t max_tokens) {
  Request request = request_of(id, prompt, max_tokens);
  request.params.num_prompt_logprobs = kTop;
  request.params.flags = SamplingParams::kOutputHidden | SamplingParams::kPromptHidden;
  return request;
}

TEST(PromptLogprobs, FiveTokensHaveFourAndOneTokenHasNone) {
  ModelRig rig(base_options());
  rig.add(curious(1, {9, 8, 7, 6, 5}, 1));
  rig.add(curious(2, {9}, 1));
  rig.run();
  EXPECT_EQ(rig.results().at(1).prompt_logprobs.size(), 4U);
  EXPECT_TRUE(rig.results().at(2).prompt_logprobs.empty());
  const auto width = static_cast<size_t>(rig.results().at(2).hidden.size());
  EXPECT_EQ(rig.results().at(1).hidden.size(), 5 * width);
}

struct Way {
  const char* name;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

std::vector<Way> ways() {
  const auto budget = [](int32_t toks) {
    return [toks](RigOptions& o) {
      o.config.max_num_seqs = std::min(4, toks);
      o.config.max_num_batched_tokens = toks;
    };
  };
  const auto partial = [](ModelRig& rig) {
    return rig.scheduler().stats().num_partial_prefill_steps > 0;
  };
  const auto any = [](ModelRig&) { return true; };
  return {
      {"together", [](RigOptions&) {}, any},
      {"sync", [](RigOptions& o) { o.config.async_scheduling = false; }, any},
      {"chunks of 2", budget(2), partial},
      {"chunks of 3", budget(3), partial},
      {"chunks of 8", budget(8), partial},
      {"serialised", [](RigOptions& o) { o.serialize = true; }, any},
      {"prefix caching",
       [](RigOptions& o) { o.config.enable_prefix_caching = true; },
       [](ModelRig& rig) { return rig.scheduler().stats().num_prefix_hit_tokens > 0; }},
      {"preemption",
       [](RigOptions& o) {
         o.config.max_model_len = 80;
         o.config.max_num_batched_tokens = 24;
         o.config.kv_cache_memory_bytes =
             7 * value_or_throw(plan_model(base_options().config, this_machine()))
                     .kv_cache.block_bytes();
       },
       [](ModelRig& rig) { return rig.scheduler().stats().num_preemptions > 0; }},
      {"graphs",
       [](RigOptions& o) {
         o.config.cudagraph_mode = "full";
         o.config.cudagraph_capture_sizes = "1,2,4,64";
       },
       [](ModelRig& rig) { return rig.executor().stats().graphs_full > 0; }},
  };
}

// Two requests for prompt logprobs among others. One of the others has the same prompt and ran before.
TEST(PromptLogprobs, AreThoseOfEveryPrefixHoweverThePromptIsCut) {
  const std::vector<TokenId> first = random_tokens(40, 1);
  const std::vector<TokenId> second = random_tokens(23, 2);
  const Known want_first = reference(first, 20);
  const Known want_second = reference(second, 30);
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    RigOptions options = base_options();
    way.set(options);
    ModelRig rig(options);
    rig.add(request_of(7, first, 3));
    rig.run();
    rig.add(request_of(8, first, 30));
    rig.add(curious(1, first, 20));
    rig.add(curious(2, second, 30));
    rig.run();
    expect_known(want_first, known(rig.results().at(1)));
    expect_known(want_second, known(rig.results().at(2)));
    EXPECT_TRUE(rig.results().at(8).prompt_logprobs.empty());
    EXPECT_TRUE(rig.results().at(8).hidden.empty());
    EXPECT_EQ(rig.results().at(1).num_cached_tokens, 0) << "a cached prefix would have no logits";
    EXPECT_TRUE(way.was_active(rig));
  }
}

// Heap bytes in use; 0 under sanitizers, which replace the allocator.
size_t heap_bytes() { return mallinfo2().uordblks; }

// A row keeps none of the memory collected for a prompt, whether the request ended normally or was aborted half-way.
TEST(PromptLogprobs, LeaveNothingBehind) {
  for (const bool aborts : {false, true}) {
    SCOPED_TRACE(aborts);
    RigOptions options = base_options();
    options.config.max_num_batched_tokens = 64;
    ModelRig rig(options);
    uint64_t id = 0;
    const auto round = [&](bool is_curious) {
      const uint64_t first = id + 1;
      for (int i = 0; i < 8; ++i) {
        const std::vector<TokenId> prompt = random_tokens(120, static_cast<uint32_t>(i));
        ++id;
        rig.add(is_curious ? curious(id, prompt, 2) : request_of(id, prompt, 2));
      }
      for (int i = 0; aborts && i < 8; ++i) {
        for (int tick = 0; tick < 3; ++tick) {
          rig.tick();
        }
        rig.scheduler().abort_request(first + static_cast<uint64_t>(i));
      }
      rig.run();
      rig.results().clear();
    };
    round(false);
    const size_t before = heap_bytes();
    round(true);
    const size_t after = heap_bytes();
    EXPECT_LT(after, before + 60'000) << "the hidden states of one prompt take 23,040 bytes";
  }
}

TEST(PromptLogprobs, FollowTheModeAsRawOnes) {
  const std::vector<TokenId> prompt = random_tokens(12, 3);
  std::map<std::string, RigResult> results;
  for (const char* mode :
       {"raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"}) {
    RigOptions options = base_options();
    options.config.logprobs_mode = mode;
    ModelRig rig(options);
    Request request = curious(1, prompt, 1);
    request.params.num_prompt_logprobs = Sampler::kMaxPromptTop;
    request.params.temperature = 0.5F;
    rig.add(request);
    results[mode] = rig.run().at(1);
  }
  EXPECT_EQ(results["raw_logprobs"].prompt_top, results["processed_logprobs"].prompt_top);
  EXPECT_EQ(results["raw_logits"].prompt_top, results["processed_logits"].prompt_top);
  const auto& logits = results["raw_logits"].prompt_top.at(4);
  const auto& logprobs = results["raw_logprobs"].prompt_top.at(4);
  EXPECT_NE(logits[0].second, logprobs[0].second);
  for (size_t i = 1; i < logits.size(); ++i) {
    EXPECT_EQ(logits[i].first, logprobs[i].first);
    EXPECT_NEAR(logits[0].second - logits[i].second, logprobs[0].second - logprobs[i].second, 1e-5);
  }
}

// A row whose mask is late computes its last token again. Nothing may be reported twice.
TEST(PromptLogprobs, RowsThatAreWithheldTellEverythingOnce) {
  const std::unique_ptr<TextModel> text = value_or_throw(make_byte_text());
  GrammarSource source(*text);
  const Grammar grammar = value_or_throw(source.compile({GrammarKind::kRegex, "[a-z]{40}"}));
  const auto run = [&](int32_t delay_us) {
    RigOptions options = base_options();
    options.config.grammar_mask_delay_us = delay_us;
    ModelRig rig(options);
    for (uint64_t id = 1; id <= 4; ++id) {
      Request request = request_of(id, random_tokens(9, static_cast<uint32_t>(id)), 12);
      request.params.num_logprobs = 1;
      request.params.num_prompt_logprobs = kTop;
      request.params.flags = SamplingParams::kOutputHidden | SamplingParams::kPromptHidden;
      if (id % 2 == 0) {
        rig.add(request, grammar);
      } else {
        rig.add(request);
      }
    }
    std::map<uint64_t, RigResult> results = rig.run();
    EXPECT_EQ(rig.num_withheld() > 0, delay_us > 0);
    return results;
  };
  const std::map<uint64_t, RigResult> want = run(0);
  const std::map<uint64_t, RigResult> got = run(30'000);
  for (const auto& [id, result] : want) {
    SCOPED_TRACE(id);
    EXPECT_EQ(result.tokens.size(), 12U);
    EXPECT_EQ(result.tokens, got.at(id).tokens);
    expect_known(known(result), known(got.at(id)));
  }
}

}  // namespace
}  // namespace warprow
