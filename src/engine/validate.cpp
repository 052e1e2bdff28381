// SPDX-License-Identifier: Apache-2.0
#include "engine/validate.h"

#include "engine/adapters.h"
#include "engine/prompt_length.h"
#include "kv/block_hash.h"
#include "wire/scheduler_output.h"
#include "wire/token_lists.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr double kMaxLogitBias = 100.0;
constexpr const char* kSpace = " \t\n\v\f\r";
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// [low, high], or (low, high] where low is open; only finite values are inside.
struct RealRange {
  const char* field;
  double low;
  double high;
  bool low_open = false;

  [[nodiscard]] bool has(double value) const {
    return std::isfinite(value) && (low_open ? value > low : value >= low) && value <= high;
  }
};

struct IntRange {
  const char* field;
  int64_t low;
  int64_t high;
};

// A value and its source: the client, the model or our default.
template <typename T>
struct Choice {
  T value;
  const char* origin;  // appended to the field's name in a message
};

template <typename T>
Choice<T> choose(const std::optional<T>& client, const std::optional<T>& model, T fallback) {
  if (client) {
    return {*client, ""};
  }
  if (model) {
    return {*model, " of the model's generation config"};
  }
  return {fallback, ""};
}

// Checks the fields of one request and keeps the first error; all later checks still run,
// harmlessly.
class Checker {
 public:
  Checker(const SamplingOptions& options, const RequestLimits& limits)
      : options_(options), limits_(limits), length_(limits.max_model_len) {}

  void check_runner();
  void check_prompt(const std::vector<TokenId>& ids, const EmbeddingVectors* embeds);
  void check_pooled_prompt(const std::vector<TokenId>& ids);
  SamplingParams check_sampling(bool is_beam_step);
  void check_logprobs(SamplingParams& params, bool is_beam_step);
  void check_penalties(SamplingParams& params);
  std::optional<uint64_t> check_seed();
  int32_t check_max_tokens(size_t prompt_len);
  std::vector<TokenId> check_stop_token_ids();
  void check_stop();
  int32_t check_num_choices(bool greedy);
  void check_min_tokens(RequestFields& fields);
  uint32_t check_hidden_states(HiddenStatesOption options);
  void check_priority(int32_t priority);
  TokenLists check_token_lists(std::vector<std::vector<TokenId>> bad_words);

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  void refuse(ErrorCode code, std::string message) {
    if (!error_) {
      error_ = Error{code, std::move(message)};
    }
  }
  double check(const RealRange& range, Choice<double> choice);
  int64_t check(const IntRange& range, Choice<int64_t> choice);
  bool in_vocabulary(int64_t id) const { return id >= 0 && id < limits_.vocab_size; }
  void check_prompt_ids(const std::vector<TokenId>& ids, bool may_have_vectors = false);
  void check_embeds(const std::vector<TokenId>& ids, const EmbeddingVectors& embeds);
  void check_id(const char* field, int64_t id);
  void check_allowed(TokenLists& lists);
  void check_biases(TokenLists& lists);
  void check_logprob_ids(TokenLists& lists);
  void check_bad_words(TokenLists& lists, std::vector<std::vector<TokenId>> words);

  const SamplingOptions& options_;
  const RequestLimits& limits_;
  PromptLength length_;
  std::optional<Error> error_;
};

double Checker::check(const RealRange& range, Choice<double> choice) {
  if (!range.has(choice.value)) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("{}{}: {} is outside {}{}, {}{}",
                       range.field,
                       choice.origin,
                       choice.value,
                       range.low_open ? '(' : '[',
                       range.low,
                       range.high,
                       std::isfinite(range.high) ? ']' : ')'));
  }
  return choice.value;
}

int64_t Checker::check(const IntRange& range, Choice<int64_t> choice) {
  if (choice.value < range.low || choice.value > range.high) {
    const std::string limit = range.high == kNoLimit
                                  ? fmt::format("must be {} or more", range.low)
                                  : fmt::format("is outside [{}, {}]", range.low, range.high);
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("{}{}: {} {}", range.field, choice.origin, choice.value, limit));
  }
  return choice.value;
}

void Checker::check_runner() {
  if (limits_.pooling.pools()) {
    refuse(ErrorCode::kUnsupported,
           limits_.pooling.task == PoolingTask::kEmbed
               ? "the model yields embeddings and no text; ask for /v1/embeddings, or start with "
                 "--runner generate"
               : "the model yields scores of labels and no text; ask for /score, /rerank or "
                 "/classify, or start with --runner generate");
  }
}

void Checker::check_prompt(const std::vector<TokenId>& ids, const EmbeddingVectors* embeds) {
  if (std::optional<PromptExcess> excess = length_.judge(std::ssize(ids))) {
    refuse(ErrorCode::kInvalidArgument, std::move(excess->message));
  }
  if (embeds != nullptr) {
    check_embeds(ids, *embeds);
  }
  check_prompt_ids(ids, embeds != nullptr);
}

void Checker::check_embeds(const std::vector<TokenId>& ids, const EmbeddingVectors& embeds) {
  if (limits_.prompt_embeds_width == 0) {
    refuse(ErrorCode::kUnsupported,
           "prompt_embeds: the engine was started without --enable-prompt-embeds");
    return;
  }
  if (options_.prompt_logprobs) {
    refuse(ErrorCode::kUnsupported,
           "prompt_logprobs: a prompt with prompt_embeds has tokens without an id");
  }
  if (embeds.width != limits_.prompt_embeds_width) {
    refuse(
        ErrorCode::kInvalidArgument,
        fmt::format("prompt_embeds: vectors of {} numbers, must have {}, the model's hidden size",
                    embeds.width,
                    limits_.prompt_embeds_width));
    return;
  }
  const auto places = std::ranges::count(ids, TokenId{-1});
  if (std::cmp_not_equal(places, embeds.num_vectors())) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("prompt_embeds: {} vectors for {} places (-1) in the prompt",
                       embeds.num_vectors(),
                       places));
  }
  const auto odd =
      std::ranges::find_if_not(embeds.values, [](float v) { return std::isfinite(v); });
  if (odd != embeds.values.end()) {
    const auto at = odd - embeds.values.begin();
    refuse(ErrorCode::kInvalidArgument,
           fmt::format(
               "prompt_embeds: {} in vector {}, must be a finite number", *odd, at / embeds.width));
  }
}

void Checker::check_pooled_prompt(const std::vector<TokenId>& ids) {
  if (std::optional<PromptExcess> excess = length_.judge_alone(std::ssize(ids))) {
    refuse(ErrorCode::kInvalidArgument, std::move(excess->message));
  }
  check_prompt_ids(ids);
}

void Checker::check_prompt_ids(const std::vector<TokenId>& ids, bool may_have_vectors) {
  if (ids.empty()) {
    refuse(ErrorCode::kInvalidArgument, "prompt: 0 tokens, must be 1 or more");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!in_vocabulary(ids[i]) && !(may_have_vectors && ids[i] == -1)) {
      refuse(ErrorCode::kInvalidArgument,
             fmt::format("prompt: token id {} at position {} is outside the vocabulary [0, {}]",
                         ids[i],
                         i,
                         limits_.vocab_size - 1));
      return;
    }
  }
}

void Checker::check_logprobs(SamplingParams& params, bool is_beam_step) {
  const bool has_all = limits_.max_logprobs == -1;
  const int64_t allowed =
      is_beam_step ? std::max<int64_t>(limits_.max_logprobs, kMaxLogprobIds) : limits_.max_logprobs;
  const int64_t most = has_all ? limits_.vocab_size : allowed;
  if (options_.logprobs) {
    const int64_t n = check(IntRange{"logprobs", has_all ? -1 : 0, most},
                            Choice<int64_t>{*options_.logprobs, ""});
    params.num_logprobs = static_cast<int32_t>(n == -1 ? most : n);
  }
  if (options_.prompt_logprobs) {
    params.num_prompt_logprobs =
        static_cast<int32_t>(check(IntRange{"prompt_logprobs", 0, std::min(most, kMaxLogprobs)},
                                   Choice<int64_t>{*options_.prompt_logprobs, ""}));
  }
}

SamplingParams Checker::check_sampling(bool is_beam_step) {
  const SamplingOptions& model = limits_.defaults;
  const double temperature =
      check(RealRange{"temperature", 0, 2}, choose(options_.temperature, model.temperature, 1.0));
  const double top_p =
      check(RealRange{"top_p", 0, 1, true}, choose(options_.top_p, model.top_p, 1.0));
  const double min_p = check(RealRange{"min_p", 0, 1}, choose(options_.min_p, model.min_p, 0.0));
  const int64_t top_k =
      check(IntRange{"top_k", -1, kNoLimit}, choose(options_.top_k, model.top_k, int64_t{0}));
  SamplingParams params;
  check_logprobs(params, is_beam_step);
  if (temperature >= kGreedyBelow) {  // a greedy row ignores these, as in vLLM
    params.temperature = static_cast<float>(temperature);
    // A double just above 0 must not become a float 0, which is out of range.
    params.top_p = std::max(static_cast<float>(top_p), std::numeric_limits<float>::min());
    params.min_p = static_cast<float>(min_p);
    params.top_k = top_k > 0 && top_k < limits_.vocab_size ? static_cast<int32_t>(top_k) : 0;
  }
  return params;
}

void Checker::check_penalties(SamplingParams& params) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const double repetition =
      check(RealRange{"repetition_penalty", 0, kInfinite, true},
            choose(options_.repetition_penalty, limits_.defaults.repetition_penalty, 1.0));
  // Beyond these a logit divided by the penalty would be no finite float, and no token could be drawn.
  constexpr double kStrongest = 1e30;
  params.repetition_penalty =
      static_cast<float>(std::clamp(repetition, 1 / kStrongest, kStrongest));
  params.frequency_penalty = static_cast<float>(
      check(RealRange{"frequency_penalty", -2, 2}, choose(options_.frequency_penalty, {}, 0.0)));
  params.presence_penalty = static_cast<float>(
      check(RealRange{"presence_penalty", -2, 2}, choose(options_.presence_penalty, {}, 0.0)));
}

std::optional<uint64_t> Checker::check_seed() {
  if (!options_.seed || *options_.seed == -1) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(*options_.seed);
}

int32_t Checker::check_max_tokens(size_t prompt_len) {
  const int64_t left = length_.left(static_cast<int64_t>(prompt_len));
  const int64_t wanted =
      check(IntRange{"max_tokens", 1, kNoLimit},
            choose(options_.max_tokens, limits_.defaults.max_tokens, std::max<int64_t>(left, 1)));
  return static_cast<int32_t>(std::min(wanted, left));
}

std::vector<TokenId> Checker::check_stop_token_ids() {
  std::vector<TokenId> ids;
  if (options_.stop_token_ids.size() > kMaxStopTokenIds) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("stop_token_ids: {} ids are more than {}",
                       options_.stop_token_ids.size(),
                       kMaxStopTokenIds));
    return {};
  }
  for (const int64_t id : options_.stop_token_ids) {
    if (!in_vocabulary(id)) {
      refuse(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "stop_token_ids: {} is outside the vocabulary [0, {}]", id, limits_.vocab_size - 1));
      return {};
    }
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(static_cast<TokenId>(id));
    }
  }
  return ids;
}

void Checker::check_stop() {
  if (options_.stop.size() > kMaxStopStrings) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("stop: {} strings are more than {}", options_.stop.size(), kMaxStopStrings));
  }
  size_t num_bytes = 0;
  for (size_t i = 0; i < options_.stop.size(); ++i) {
    num_bytes += options_.stop[i].size();
    if (options_.stop[i].empty()) {
      refuse(ErrorCode::kInvalidArgument,
             fmt::format("stop: string {} is empty, must have 1 character or more", i));
    }
  }
  if (num_bytes > kMaxStopBytes) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("stop: {} bytes in all strings are more than {}", num_bytes, kMaxStopBytes));
  }
}

int32_t Checker::check_num_choices(bool greedy) {
  const int64_t n = check(IntRange{"n", 1, kMaxChoices}, choose(options_.n, {}, int64_t{1}));
  if (n > 1 && greedy) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format(
               "n: {} must be 1 when sampling is greedy (temperature below {})", n, kGreedyBelow));
  }
  return static_cast<int32_t>(n);
}

// Call it after the fields that it compares with: max_tokens, EOS and stop ids.
void Checker::check_min_tokens(RequestFields& fields) {
  fields.params.min_tokens = static_cast<int32_t>(check(
      IntRange{"min_tokens", 0, fields.max_tokens}, choose(options_.min_tokens, {}, int64_t{0})));
  const size_t num_ids = fields.eos_token_ids.size() + fields.stop_token_ids.size();
  if (fields.params.min_tokens > 0 && num_ids > kMaxStopIds) {
    refuse(
        ErrorCode::kInvalidArgument,
        fmt::format("stop_token_ids: {} ids, end of sequence included, are more than the {} that "
                    "min_tokens can hold back",
                    num_ids,
                    kMaxStopIds));
  }
}

void Checker::check_id(const char* field, int64_t id) {
  if (!in_vocabulary(id)) {
    refuse(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} is outside the vocabulary [0, {}]", field, id, limits_.vocab_size - 1));
  }
}

void Checker::check_allowed(TokenLists& lists) {
  if (!options_.allowed_token_ids) {
    return;
  }
  if (options_.allowed_token_ids->empty()) {
    refuse(ErrorCode::kInvalidArgument, "allowed_token_ids: 0 ids, must be 1 or more");
  }
  for (const int64_t id : *options_.allowed_token_ids) {
    check_id("allowed_token_ids", id);
    lists.allowed.push_back(static_cast<TokenId>(id));
  }
  std::sort(lists.allowed.begin(), lists.allowed.end());
  lists.allowed.erase(std::unique(lists.allowed.begin(), lists.allowed.end()), lists.allowed.end());
}

void Checker::check_biases(TokenLists& lists) {
  for (const auto& [id, bias] : options_.logit_bias) {
    check_id("logit_bias", id);
    if (!std::isfinite(bias)) {
      refuse(ErrorCode::kInvalidArgument,
             fmt::format("logit_bias: {} of token {} is not finite", bias, id));
    }
    const double cut = std::clamp(bias, -kMaxLogitBias, kMaxLogitBias);
    lists.biases.emplace_back(static_cast<TokenId>(id), static_cast<float>(cut));
  }
}

void Checker::check_bad_words(TokenLists& lists, std::vector<std::vector<TokenId>> words) {
  if (options_.bad_words.size() > kMaxBadWords) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format(
               "bad_words: {} strings are more than {}", options_.bad_words.size(), kMaxBadWords));
    return;
  }
  for (size_t i = 0; i < options_.bad_words.size(); ++i) {
    if (options_.bad_words[i].find_first_not_of(kSpace) == std::string::npos) {
      refuse(
          ErrorCode::kInvalidArgument,
          fmt::format("bad_words: string {} is blank, must have 1 visible character or more", i));
    }
  }
  for (const std::vector<TokenId>& word : words) {
    if (word.empty()) {
      refuse(ErrorCode::kInvalidArgument, "bad_words: a string has no tokens");
    }
    for (const TokenId id : word) {
      check_id("bad_words", id);
    }
  }
  lists.bad_words = std::move(words);
}

void Checker::check_logprob_ids(TokenLists& lists) {
  if (!options_.logprob_token_ids) {
    return;
  }
  const size_t num_ids = options_.logprob_token_ids->size();
  if (num_ids == 0 || num_ids > kMaxLogprobIds) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("logprob_token_ids: {} ids, must be 1 to {}", num_ids, kMaxLogprobIds));
    return;
  }
  if (options_.logprobs.value_or(0) != 0) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("logprobs: {} with logprob_token_ids, which name the tokens; must be 0 or "
                       "unset",
                       *options_.logprobs));
  }
  for (const int64_t id : *options_.logprob_token_ids) {
    check_id("logprob_token_ids", id);
    lists.logprob_ids.push_back(static_cast<TokenId>(id));
  }
}

TokenLists Checker::check_token_lists(std::vector<std::vector<TokenId>> bad_words) {
  TokenLists lists;
  check_allowed(lists);
  check_biases(lists);
  check_bad_words(lists, std::move(bad_words));
  check_logprob_ids(lists);
  const char* first = options_.allowed_token_ids    ? "allowed_token_ids"
                      : !options_.bad_words.empty() ? "bad_words"
                                                    : "logit_bias";
  const int64_t words = num_token_list_words(lists);
  if (words > kMaxTokenListWords) {
    refuse(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: the request's token lists take {} words, more than the {} of a row (1 "
                    "for an allowed id, 2 for a bias, 1 for a bad word and each of its tokens, 1 "
                    "for each of logprob_token_ids)",
                    first,
                    words,
                    kMaxTokenListWords));
  }
  return lists;
}

// The flags of SamplingParams for the requested hidden states.
uint32_t Checker::check_hidden_states(HiddenStatesOption options) {
  if (options == HiddenStatesOption::kNone) {
    return 0;
  }
  if (!limits_.has_hidden_states) {
    refuse(ErrorCode::kUnsupported,
           "hidden_states: the engine was started without --enable-hidden-states");
  }
  return options == HiddenStatesOption::kAll
             ? SamplingParams::kOutputHidden | SamplingParams::kPromptHidden
             : SamplingParams::kOutputHidden;
}

void Checker::check_priority(int32_t priority) {
  if (priority != 0 && !limits_.has_priorities) {
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("priority: {} must be 0, since the engine was started without "
                       "--scheduling-policy priority",
                       priority));
  }
}

// 0 means no salt, so a salt that happens to hash to 0 becomes 1.
uint64_t hash_salt(std::string_view salt) {
  if (salt.empty()) {
    return 0;
  }
  const uint64_t hash = sip_hash_128(std::as_bytes(std::span(salt.data(), salt.size()))).lo;
  return hash == 0 ? 1 : hash;
}

// Prompts with equal ids share a prefix only if their vectors are equal too: the vectors become a part of the salt.
uint64_t salt_of_vectors(const EmbeddingVectors& embeds, uint64_t salt) {
  const BlockHash vectors = sip_hash_128(std::as_bytes(std::span(embeds.values)));
  const uint64_t words[] = {vectors.lo, vectors.hi, salt};
  return sip_hash_128(std::as_bytes(std::span(words))).lo;
}

// The number of the request's adapter.
Result<int32_t> find_adapter(const std::string& name, const RequestLimits& limits) {
  if (name.empty()) {
    return -1;
  }
  const std::optional<LoadedAdapter> adapter =
      limits.adapters == nullptr ? std::nullopt : limits.adapters->find(name);
  if (!adapter) {
    return fail(ErrorCode::kNotFound, fmt::format("adapter: '{}' is not loaded", name));
  }
  return adapter->id;
}

// Checks everything and returns the resulting fields, without those that are only copied.
Result<RequestFields> checked_fields(const GenerationRequest& request,
                                     const std::vector<TokenId>& prompt_token_ids,
                                     const RequestLimits& limits,
                                     std::vector<std::vector<TokenId>> bad_words,
                                     const EmbeddingVectors* embeds) {
  const SamplingOptions& options = request.sampling;
  Checker checker(options, limits);
  RequestFields fields;
  checker.check_runner();
  checker.check_prompt(prompt_token_ids, embeds);
  fields.params = checker.check_sampling(request.is_beam_step);
  checker.check_penalties(fields.params);
  fields.seed = checker.check_seed();
  fields.max_tokens = checker.check_max_tokens(prompt_token_ids.size());
  fields.stop_token_ids = checker.check_stop_token_ids();
  checker.check_stop();
  fields.num_choices = checker.check_num_choices(fields.params.is_greedy());
  if (!options.ignore_eos) {
    fields.eos_token_ids = limits.eos_token_ids;
  }
  checker.check_min_tokens(fields);
  const TokenLists lists = checker.check_token_lists(std::move(bad_words));
  fields.params.flags |= checker.check_hidden_states(request.hidden_states);
  checker.check_priority(request.priority);
  if (checker.error()) {
    return tl::unexpected<Error>(*checker.error());
  }
  const Result<int32_t> adapter = find_adapter(request.adapter, limits);
  if (!adapter) {
    return tl::unexpected(adapter.error());
  }
  fields.adapter = *adapter;
  if (fields.seed) {
    fields.params.seed = *fields.seed;
  }
  if (!lists.empty()) {
    fields.params.flags |= lists.has_rules() ? SamplingParams::kHasTokenLists : 0;
    fields.token_lists = pack_token_lists(lists);
  }
  if (!lists.logprob_ids.empty()) {
    fields.params.flags |= SamplingParams::kHasLogprobIds;
    fields.params.num_logprobs = static_cast<int32_t>(lists.logprob_ids.size());
  }
  return fields;
}

}  // namespace

Result<ValidRequest> validate_request(const GenerationRequest& request,
                                      std::vector<TokenId> prompt_token_ids,
                                      const RequestLimits& limits,
                                      std::vector<std::vector<TokenId>> bad_words,
                                      std::optional<Grammar> grammar,
                                      PromptEmbeds embeds) {
  Result<RequestFields> checked =
      checked_fields(request, prompt_token_ids, limits, std::move(bad_words), embeds.get());
  if (!checked) {
    return tl::unexpected(std::move(checked).error());
  }
  RequestFields fields = *std::move(checked);
  fields.prompt_token_ids = std::move(prompt_token_ids);
  fields.grammar = std::move(grammar);
  fields.stop = request.sampling.stop;
  fields.include_stop_str_in_output = request.sampling.include_stop_str_in_output;
  fields.skip_special_tokens = request.sampling.skip_special_tokens;
  fields.speculate = request.sampling.speculate && embeds == nullptr;
  fields.spaces_between_special_tokens = request.sampling.spaces_between_special_tokens;
  fields.priority = request.priority;
  fields.copies_tail = request.is_beam_step;
  fields.cache_salt = hash_salt(request.cache_salt);
  if (embeds != nullptr) {
    fields.cache_salt = salt_of_vectors(*embeds, fields.cache_salt);
    fields.embeds = std::move(embeds);
  }
  return ValidRequest(std::move(fields));
}

namespace {

// The flag of the tokens that the runner makes a vector of.
uint32_t pooling_flag(const PoolingRequest& request, PoolingMethod method) {
  if (request.of_tokens) {
    return SamplingParams::kPoolAll;
  }
  return method == PoolingMethod::kLast    ? SamplingParams::kPoolLast
         : method == PoolingMethod::kFirst ? SamplingParams::kPoolFirst
                                           : SamplingParams::kPoolMean;
}

// What a request asks for that its model does not have; empty if there is nothing.
std::string unmet_pooling(const PoolingRequest& request, const PoolingFacts& model) {
  const bool embeds = model.task == PoolingTask::kEmbed;
  if (!model.pools()) {
    return "the model generates text and has no embeddings or scores; start with --runner pooling";
  }
  if (request.task && *request.task != model.task) {
    return embeds ? "the model yields embeddings, not scores of labels; ask for /v1/embeddings or "
                    "/score"
                  : "the model yields scores of labels, not embeddings; ask for /score, /rerank or "
                    "/classify";
  }
  if (!embeds && (request.dimensions || request.normalize)) {
    return fmt::format("{}: the model yields scores of labels, not embeddings",
                       request.dimensions ? "dimensions" : "normalize");
  }
  if (embeds && request.activation) {
    return "use_activation: the model yields embeddings, not scores of labels";
  }
  return {};
}

Result<int32_t> checked_dimensions(int64_t wanted, const PoolingFacts& model) {
  const std::vector<int32_t>& known = model.dimensions;
  if (wanted < 1 || wanted > model.width) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("dimensions: {} is outside [1, {}], the model's", wanted, model.width));
  }
  const bool is_known =
      known.empty() || wanted == model.width || std::ranges::find(known, wanted) != known.end();
  if (!is_known) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("dimensions: {} is none of the model's {}, {}",
                            wanted,
                            fmt::join(known, ", "),
                            model.width));
  }
  return static_cast<int32_t>(wanted);
}

}  // namespace

Result<ValidRequest> validate_pooling_request(const PoolingRequest& request,
                                              std::vector<TokenId> prompt_token_ids,
                                              const RequestLimits& limits) {
  const PoolingFacts& model = limits.pooling;
  if (std::string why = unmet_pooling(request, model); !why.empty()) {
    return fail(ErrorCode::kUnsupported, std::move(why));
  }
  VectorForm form;
  if (request.dimensions) {
    const Result<int32_t> size = checked_dimensions(*request.dimensions, model);
    if (!size) {
      return tl::unexpected(size.error());
    }
    form.dimensions = *size;
  }
  const SamplingOptions no_sampling;
  Checker checker(no_sampling, limits);
  checker.check_pooled_prompt(prompt_token_ids);
  checker.check_priority(request.priority);
  if (checker.error()) {
    return tl::unexpected<Error>(*checker.error());
  }
  if (model.task == PoolingTask::kEmbed) {
    form.normalize = request.normalize.value_or(model.normalize);
  } else if (request.activation.value_or(true)) {
    form.activation = model.activation;
  }
  if (model.num_segments > 1 && request.second_segment > 0) {
    for (size_t i = static_cast<size_t>(request.second_segment); i < prompt_token_ids.size(); ++i) {
      prompt_token_ids[i] |= 1 << kSegmentShift;
    }
  }
  RequestFields fields;
  fields.prompt_token_ids = std::move(prompt_token_ids);
  fields.params.flags = pooling_flag(request, model.method);
  fields.seed = 0;
  fields.max_tokens = 1;
  fields.pooling = form;
  fields.priority = request.priority;
  fields.cache_salt = hash_salt(request.cache_salt);
  return ValidRequest(std::move(fields));
}

Result<void> check_without_prompt(const GenerationRequest& request, const RequestLimits& limits) {
  return checked_fields(request, {0}, limits, {}, nullptr).map([](const RequestFields&) {});
}

Result<void> check_without_model(const SamplingOptions& sampling) {
  GenerationRequest request;
  request.sampling = sampling;
  RequestLimits widest;  // at least as wide as any model's
  widest.vocab_size = std::numeric_limits<int32_t>::max();
  widest.max_model_len = std::numeric_limits<int32_t>::max();
  widest.max_logprobs = -1;
  return check_without_prompt(request, widest);
}

std::vector<ValidRequest> split_choices(const ValidRequest& request) {
  std::vector<ValidRequest> out;
  for (int32_t i = 0; i < request.fields_.num_choices; ++i) {
    RequestFields fields = request.fields_;
    fields.num_choices = 1;
    if (fields.seed) {
      fields.seed = *fields.seed + static_cast<uint64_t>(i);
      fields.params.seed = *fields.seed;
    }
    if (i > 0) {
      fields.params.num_prompt_logprobs = -1;
    }
    out.push_back(ValidRequest(std::move(fields)));
  }
  return out;
}

}  // namespace warprow
