// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// One prompt of a load on a server.
struct ServePrompt {
  nlohmann::json prompt;  // a text, token ids, or the messages of a chat
  int64_t output_len = 0;
};

// The prompts that `bench serve` sends. Names and defaults are vLLM's.
struct ServeDataset {
  std::string name = "random";      // or "custom": a file
  std::optional<std::string> path;  // of the file
  int64_t num_prompts = 1000;
  int64_t seed = 0;
  // random
  int64_t input_len = 1024;
  int64_t output_len = 128;
  int64_t prefix_len = 0;  // tokens of a prefix that all prompts share, in addition to input_len
  double range_ratio = 0;  // lengths are uniform in [len * (1 - ratio), len * (1 + ratio)]
  bool as_text = false;    // words instead of token ids
  int64_t vocab_size = 0;  // exclusive limit of the drawn ids; 0: unknown
  // custom
  int64_t custom_output_len = 256;
};

// random: token ids, or as many common English words, each of which is one token in nearly every vocabulary. The same
// seed gives the same prompts on every machine. custom: lines {"prompt": text or ids} or {"messages": [...]} with an
// optional "output_tokens", repeated from the start if there are too few. Errors name the flag or line.
Result<std::vector<ServePrompt>> make_prompts(const ServeDataset& dataset);

// Lengths of the random prompts that make_prompts() draws for the same dataset, without the prompts. The same errors.
struct PromptLens {
  int64_t input_len = 0;  // the shared prefix included
  int64_t output_len = 0;
};
Result<std::vector<PromptLens>> random_prompt_lens(const ServeDataset& dataset);

// The arrival times of the requests, in seconds from the start. The intervals have a gamma distribution with shape
// burstiness (1: Poisson arrivals; lower: burstier) and mean 1 / rate. They are scaled so that the last request arrives
// after count / rate seconds. All 0 for an infinite rate.
//
// Origin: the arrival process of vLLM's benchmark.
std::vector<double> arrival_times(int64_t count, double rate, double burstiness, int64_t seed);

}  // namespace warprow
