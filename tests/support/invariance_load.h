// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/model_files.h"
#include "tests/support/model_rig.h"
#include "tests/support/rig_grammars.h"
#include "tests/support/rig_rules.h"
#include "text/byte_text.h"
#include "text/text_model.h"
#include "wire/token_lists.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {

// The workload of the invariance matrix, and its answers.

struct Workload {
  std::string model;
  std::string dtype;
  int32_t vocab_size;
  int32_t num_requests;
  int32_t max_prompt;
  int32_t max_tokens;
  std::string kv_cache_dtype = "auto";
};

// Prompts of mixed length, half of them with a common prefix. Half of them are sampled with a seed. Of five
// requests one each has penalties, min_tokens, token lists and a grammar (rig_grammars.h).
inline std::vector<Request> make_requests(const Workload& load) {
  std::vector<Request> requests = mixed_requests({.num_requests = load.num_requests,
                                                  .max_prompt = load.max_prompt,
                                                  .max_tokens = load.max_tokens,
                                                  .first_token = 3,
                                                  .vocab_size = load.vocab_size});
  for (int32_t i = 0; i < load.num_requests; ++i) {
    Request& request = requests[static_cast<size_t>(i)];
    if (i % 4 >= 2) {
      set_drawing(request.params, i);
    }
    if (i % 5 == 3) {  // greedy and sampled rows alike
      request.params.repetition_penalty = 1.3F;
      request.params.frequency_penalty = i % 2 == 0 ? 0.4F : 0.0F;
      request.params.presence_penalty = i % 3 == 0 ? 0.6F : -0.2F;
    }
    if (i % 5 == 1) {  // half of the vocabulary are stop ids, suppressed by min_tokens
      request.params.min_tokens = request.max_tokens / 2;
      request.eos_token_ids = {0};
      for (TokenId id = 1; id < 128; id += 2) {
        request.stop_token_ids.push_back(id);
      }
    }
    if (i % 5 == 2) {
      request.params.flags = SamplingParams::kHasTokenLists;
      request.token_lists = pack_token_lists(token_lists_from(i, load.vocab_size));
    }
    request.params.num_logprobs = i % 8 == 0 ? 2 : -1;
    if (i % 8 == 5) {
      set_every_rule(request, load.vocab_size);
    }
  }
  return requests;
}

inline RigOptions base_options(const Workload& load) {
  RigOptions options;
  options.config.model = load.model;
  options.config.dtype = load.dtype;
  options.config.kv_cache_dtype = load.kv_cache_dtype;
  options.config.kv_cache_memory_bytes = int64_t{64} << 20;
  options.config.max_model_len = 256;
  options.config.max_num_seqs = 32;
  options.config.max_num_batched_tokens = 128;
  options.config.enable_prefix_caching = false;
  options.config.threads = 1;
  options.device.num_threads = 1;
  return options;
}

// Compiled once for each model.
inline const Grammar& grammar_of(const Workload& load) {
  static std::map<std::string, Grammar> grammars;
  const auto found = grammars.find(load.model);
  if (found != grammars.end()) {
    return found->second;
  }
  const std::unique_ptr<TextModel> text =
      load.vocab_size < 1000
          ? value_or_throw(make_byte_text())
          : value_or_throw(load_text_model(value_or_throw(resolve_model(load.model))));
  return grammars.emplace(load.model, matrix_grammar(*text)).first->second;
}

// The result of a request. It has logprobs only if they were requested.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
  std::vector<RigResult::Top> top;
};
using Answers = std::map<uint64_t, Answer>;

inline Answers answers_of(const std::vector<Request>& requests,
                          const std::map<uint64_t, RigResult>& results) {
  Answers answers;
  for (const Request& request : requests) {
    const RigResult& result = results.at(request.id);
    Answer& answer = answers[request.id];
    answer.tokens = result.tokens;
    if (request.params.num_logprobs < 0) {
      continue;
    }
    for (const TokenLogprobs& entry : result.logprobs) {
      answer.logprobs.push_back(entry.logprob);
      answer.ranks.push_back(entry.rank);
    }
    answer.top = result.top;
  }
  return answers;
}

inline void expect_same(const Answers& expected, const Answers& answers) {
  ASSERT_EQ(expected.size(), answers.size());
  for (const auto& [id, answer] : expected) {
    SCOPED_TRACE(id);
    const Answer& other = answers.at(id);
    EXPECT_EQ(answer.tokens, other.tokens);
    EXPECT_EQ(answer.logprobs, other.logprobs);
    EXPECT_EQ(answer.ranks, other.ranks);
    EXPECT_EQ(answer.top, other.top);
  }
}

}  // namespace warprow::test
