// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "text/structured_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace warprow {

// A user's sampling options, under the names that vLLM and OpenAI clients use; unset means the model's or
// vLLM's default. Every field is accepted from the command line, from a line of --prompts-file and by the
// server.
struct SamplingOptions {
  std::optional<double> temperature;  // default 1
  std::optional<double> top_p;        // (0, 1]
  std::optional<int64_t> top_k;       // 0 or -1: off
  std::optional<double> min_p;        // [0, 1]
  std::optional<int64_t> seed;        // -1: none
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> min_tokens;
  std::optional<int64_t> n;
  std::optional<int64_t> logprobs;  // 0 .. max_logprobs; -1, if that is -1: of the vocabulary
  std::optional<int64_t> prompt_logprobs;  // 0 .. 20, and no more than max_logprobs
  // Logprobs of these tokens instead of the most likely ones; up to 128.
  std::optional<std::vector<int64_t>> logprob_token_ids;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  std::optional<std::vector<int64_t>> allowed_token_ids;
  std::vector<std::string> bad_words;
  std::map<int64_t, double> logit_bias;  // cut to [-100, 100]
  std::optional<StructuredOutput> structured_output;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool speculate = true;                      // false: no tokens are drafted for it
  bool spaces_between_special_tokens = true;  // only without skip_special_tokens
};

struct ChatMessage {
  std::string role;
  std::string content;
};

// Which hidden states, after the model's final norm, a client gets.
enum class HiddenStatesOption : uint8_t {
  kNone,
  kOutputs,  // one vector for each output: that of the token from which it was drawn
  kAll,      // those, and with the first output one for every prompt token
};

// The vectors of a prompt, one for each id -1, as the model's embedding layer would give them. Null: it has ids alone.
using PromptEmbeds = std::shared_ptr<const EmbeddingVectors>;

// A client's request, before validation.
struct GenerationRequest {
  std::variant<std::string, std::vector<TokenId>, std::vector<ChatMessage>> prompt;
  std::vector<PromptEmbeds> embeds;  // of each prompt; empty: of none. Needs enable_prompt_embeds
  SamplingOptions sampling;
  HiddenStatesOption hidden_states = HiddenStatesOption::kNone;  // needs enable_hidden_states
  int32_t priority = 0;
  std::string cache_salt;
  bool is_beam_step = false;  // may ask for as many logprobs as a row can report
  std::string adapter;        // the name of a loaded LoRA adapter; empty: the model itself
};

}  // namespace warprow
