// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "config/pooling_facts.h"
#include "engine/pooling.h"
#include "engine/request.h"
#include "text/grammar.h"
#include "wire/sampling_params.h"
#include "wire/token_lists.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace warprow {

class Adapters;

// A request after validation: every value is legal for the loaded model and every default is filled
// in.
struct RequestFields {
  // 1 .. max_model_len - 1 ids, each in the vocabulary; up to max_model_len of a pooling request. -1 where `embeds` has
  // a vector.
  std::vector<TokenId> prompt_token_ids;
  PromptEmbeds embeds;
  SamplingParams params;                // seed is 0 if the client gave none
  std::optional<uint64_t> seed;         // unset: the engine draws one at submission
  int32_t num_choices = 1;              // requested answers; see split_choices
  int32_t max_tokens = 0;               // >= 1, and prompt + max_tokens <= max_model_len
  std::vector<TokenId> eos_token_ids;   // empty with ignore_eos
  std::vector<TokenId> stop_token_ids;  // without repetitions, in the client's order
  std::vector<int32_t> token_lists;     // packed; only with params.has_lists()
  std::optional<Grammar> grammar;       // of structured output; choices share it
  std::optional<VectorForm> pooling;    // of a pooling request, which yields vectors and no token
  std::vector<std::string> stop;        // none empty
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool speculate = true;
  bool copies_tail = false;  // Request::copies_tail
  bool spaces_between_special_tokens = true;
  int32_t priority = 0;
  uint64_t cache_salt = 0;  // 0: none
  int32_t adapter = -1;     // LoadedAdapter::id; -1: none
};

// The most likely tokens that a client may ask for beside the sampled one unless --max-logprobs allows more, and beside
// a prompt's token.
inline constexpr int64_t kMaxLogprobs = 20;
// The most stop strings, and the bytes of all of them: each choice keeps a matcher of several times
// their size.
inline constexpr size_t kMaxStopStrings = 1024;
inline constexpr size_t kMaxStopBytes = 64 << 10;
// The most stop ids, each of which is compared with every token; with min_tokens kMaxStopIds.
inline constexpr size_t kMaxStopTokenIds = 1024;
// The most bad words: no more fit into a row's lists, whatever their tokens.
inline constexpr size_t kMaxBadWords = kMaxTokenListWords / 2;
// The most answers to one prompt.
inline constexpr int64_t kMaxChoices = 128;

// The limits that a request is checked against.
struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  std::vector<TokenId> eos_token_ids;
  bool has_hidden_states = false;       // of ModelFacts
  int32_t prompt_embeds_width = 0;      // of ModelFacts
  bool has_priorities = false;          // --scheduling-policy priority
  int64_t max_logprobs = kMaxLogprobs;  // -1: as many as the vocabulary has
  const Adapters* adapters = nullptr;   // that requests may name; null: none
  PoolingFacts pooling;                 // of a pooling model, which takes no requests for text
  SamplingOptions defaults;  // the model's generation config; fills what the client left unset
};

class ValidRequest;

// The client's request as a ValidRequest, or its first error: kInvalidArgument for a value out of
// range; the message names field, value and limit. Ranges and defaults are vLLM's.
// `prompt_token_ids` is the request's prompt, rendered and encoded; `bad_words` are the sequences
// that spell its bad words (engine/bad_words.h), `grammar` is its structured output, compiled
// (engine/grammar_source.h). `embeds` are the prompt's vectors; request.embeds is not read.
[[nodiscard]] Result<ValidRequest> validate_request(
    const GenerationRequest& request,
    std::vector<TokenId> prompt_token_ids,
    const RequestLimits& limits,
    std::vector<std::vector<TokenId>> bad_words = {},
    std::optional<Grammar> grammar = {},
    PromptEmbeds embeds = nullptr);

// The same for a pooling request whose prompt is encoded. kUnsupported if the model generates, or has no vectors of the
// kind that is asked for.
[[nodiscard]] Result<ValidRequest> validate_pooling_request(const PoolingRequest& request,
                                                            std::vector<TokenId> prompt_token_ids,
                                                            const RequestLimits& limits);

// Refuses what validate_request would refuse whatever the prompt, before anything is encoded or
// compiled for it.
[[nodiscard]] Result<void> check_without_prompt(const GenerationRequest& request,
                                                const RequestLimits& limits);

// Refuses what validate_request would refuse for any model, so that a typing error is reported before a model is
// loaded.
[[nodiscard]] Result<void> check_without_model(const SamplingOptions& sampling);

// One request for each choice; all are to be submitted. The prefix cache makes the repeated prompt cheap. Choice i
// has the client's seed + i, as in vLLM; without a seed the engine draws one for each. Only choice 0 reports the
// prompt's logprobs.
[[nodiscard]] std::vector<ValidRequest> split_choices(const ValidRequest& request);

// The only input to the engine; only validate_request and validate_pooling_request make one.
class ValidRequest {
 public:
  [[nodiscard]] const RequestFields& fields() const { return fields_; }
  [[nodiscard]] const std::vector<TokenId>& prompt_token_ids() const {
    return fields_.prompt_token_ids;
  }
  // Moves the values out, for the engine that takes the request.
  [[nodiscard]] RequestFields take() && { return std::move(fields_); }

 private:
  friend Result<ValidRequest> validate_request(const GenerationRequest& request,
                                               std::vector<TokenId> prompt_token_ids,
                                               const RequestLimits& limits,
                                               std::vector<std::vector<TokenId>> bad_words,
                                               std::optional<Grammar> grammar,
                                               PromptEmbeds embeds);
  friend Result<ValidRequest> validate_pooling_request(const PoolingRequest& request,
                                                       std::vector<TokenId> prompt_token_ids,
                                                       const RequestLimits& limits);
  friend std::vector<ValidRequest> split_choices(const ValidRequest& request);
  explicit ValidRequest(RequestFields fields) : fields_(std::move(fields)) {}

  RequestFields fields_;
};

}  // namespace warprow
