// SPDX-License-Identifier: Apache-2.0
#include "engine/beam_search.h"

#include "text/detokenizer.h"
#include "text/text_model.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Options that have no meaning for a beam search.
Result<void> check_unused(const SamplingOptions& options) {
  const std::pair<const char*, bool> fields[] = {
      {"n", options.n.value_or(1) != 1},
      {"top_p", options.top_p.value_or(1) != 1},
      {"top_k", options.top_k.value_or(0) > 0},
      {"min_p", options.min_p.value_or(0) != 0},
      {"min_tokens", options.min_tokens.value_or(0) != 0},
      {"prompt_logprobs", options.prompt_logprobs.has_value()},
      {"logprob_token_ids", options.logprob_token_ids.has_value()},
      {"repetition_penalty", options.repetition_penalty.value_or(1) != 1},
      {"frequency_penalty", options.frequency_penalty.value_or(0) != 0},
      {"presence_penalty", options.presence_penalty.value_or(0) != 0},
      {"stop", !options.stop.empty()},
      {"stop_token_ids", !options.stop_token_ids.empty()},
      {"allowed_token_ids", options.allowed_token_ids.has_value()},
      {"bad_words", !options.bad_words.empty()},
      {"logit_bias", !options.logit_bias.empty()},
      {"structured_outputs", options.structured_output.has_value()},
  };
  const auto* const set = std::ranges::find(fields, true, &std::pair<const char*, bool>::second);
  if (set != std::end(fields)) {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: a beam search has none", set->first));
  }
  return {};
}

// The request for one more token.
GenerationRequest step_request(const GenerationRequest& request, int64_t width) {
  GenerationRequest step = request;
  step.sampling = {};
  step.is_beam_step = true;
  step.hidden_states = HiddenStatesOption::kNone;
  step.sampling.temperature = request.sampling.temperature.value_or(0.0);
  step.sampling.top_p = 1;
  step.sampling.top_k = 0;
  step.sampling.min_p = 0;
  step.sampling.repetition_penalty = 1;
  step.sampling.max_tokens = 1;
  step.sampling.ignore_eos = true;
  step.sampling.logprobs = 2 * width;
  step.sampling.skip_special_tokens = request.sampling.skip_special_tokens;
  return step;
}

Result<void> check_options(const GenerationRequest& request,
                           const BeamOptions& options,
                           const ModelFacts& facts) {
  const int64_t widest = max_beam_width(facts);
  if (options.width < 1 || options.width > widest) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("beam_width: {} is outside [1, {}]", options.width, widest));
  }
  constexpr double kStrongest = 100;
  if (!(options.length_penalty >= -kStrongest && options.length_penalty <= kStrongest)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("length_penalty: {} is outside [{}, {}]",
                            options.length_penalty,
                            -kStrongest,
                            kStrongest));
  }
  if (request.sampling.max_tokens.value_or(1) < 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("max_tokens: {} must be 1 or more", *request.sampling.max_tokens));
  }
  return check_unused(request.sampling);
}

}  // namespace

int64_t max_beam_width(const ModelFacts& facts) {
  return std::min(std::max(facts.max_logprobs, kMaxLogprobIds), facts.vocab_size) / 2;
}

BeamSearch::BeamSearch(Engine& engine,
                       GenerationRequest request,
                       ValidRequest first,
                       const BeamLimits& limits)
    : engine_(engine),
      request_(std::move(request)),
      width_(static_cast<size_t>(limits.width)),
      prompt_(first.prompt_token_ids()),
      first_(std::move(first)),
      beams_(prompt_, limits, engine.text().eos) {}

Result<std::shared_ptr<BeamSearch>> BeamSearch::make(Engine& engine,
                                                     const GenerationRequest& request,
                                                     const BeamOptions& options) {
  const ModelFacts& facts = engine.model_facts();
  if (Result<void> checked = check_options(request, options, facts); !checked) {
    return tl::unexpected(checked.error());
  }
  GenerationRequest step = step_request(request, options.width);
  Result<ValidRequest> first = engine.validate(step);
  if (!first) {
    return tl::unexpected(first.error());
  }
  const int64_t room = facts.max_model_len - std::ssize(first->prompt_token_ids());
  const BeamLimits limits{.width = options.width,
                          .max_tokens = std::min(request.sampling.max_tokens.value_or(room), room),
                          .ignore_eos = request.sampling.ignore_eos,
                          .length_penalty = options.length_penalty};
  return std::shared_ptr<BeamSearch>(
      new BeamSearch(engine, std::move(step), *std::move(first), limits));
}

void BeamSearch::start(OnChoice on_choice) {
  const std::lock_guard lock(mutex_);
  on_choice_ = std::move(on_choice);
  std::vector<ValidRequest> requests;
  requests.push_back(*std::move(first_));
  first_.reset();
  submit(std::move(requests));
}

void BeamSearch::abort() {
  const std::lock_guard lock(mutex_);
  if (num_running_ > 0 && !failed_) {
    failed_.emplace();
    failed_->finish_reason = FinishReason::kAbort;
    abort_requests();
  }
}

void BeamSearch::abort_requests() {
  std::ranges::for_each(ids_, [this](RequestId id) { engine_.abort(id); });
}

void BeamSearch::submit(std::vector<ValidRequest> requests) {
  ids_.clear();
  likeliest_.assign(requests.size(), {});
  num_running_ = requests.size();
  for (size_t i = 0; i < requests.size(); ++i) {
    ids_.push_back(engine_.submit(
        std::move(requests[i]),
        [self = shared_from_this(), i](const RequestUpdate& update) { self->take(i, update); }));
  }
}

void BeamSearch::take(size_t index, const RequestUpdate& update) {
  const std::lock_guard lock(mutex_);
  if (!update.logprobs.empty()) {
    likeliest_[index] = update.logprobs.front().top;
  }
  if (update.finish_reason == FinishReason::kNone) {
    return;
  }
  --num_running_;
  if (first_update_.finish_reason == FinishReason::kNone) {
    first_update_ = update;
    first_token_ = std::chrono::steady_clock::now();
  }
  if (likeliest_[index].empty() && !failed_) {  // aborted or failed
    failed_ = update;
    abort_requests();
  }
  if (num_running_ == 0) {
    end_step();
  }
}

void BeamSearch::end_step() {
  if (failed_) {
    give_all(*failed_);
    return;
  }
  beams_.extend(likeliest_);
  if (beams_.live().empty()) {
    give_best();
    return;
  }
  std::vector<std::vector<TokenId>> prompts;
  for (const Beam& beam : beams_.live()) {
    prompts.push_back(beam.token_ids);
  }
  Result<std::vector<ValidRequest>> next = engine_.validate_prompts(request_, std::move(prompts));
  if (next) {
    submit(*std::move(next));
    return;
  }
  RequestUpdate refused;
  refused.finish_reason = FinishReason::kError;
  refused.error = next.error().message;
  give_all(refused);
}

void BeamSearch::give_all(const RequestUpdate& end) {
  RequestUpdate update;
  update.finish_reason = end.finish_reason;
  update.error = end.error;
  update.error_is_clients = end.error_is_clients;
  update.num_prompt_tokens = static_cast<int32_t>(prompt_.size());
  for (size_t i = 0; i < width_; ++i) {
    on_choice_(i, update);
  }
}

void BeamSearch::give_best() {
  std::vector<Beam> best = beams_.best();
  best.resize(width_);  // empty ones where fewer next tokens are possible at all
  for (size_t i = 0; i < width_; ++i) {
    on_choice_(i, update_of(std::move(best[i])));
  }
}

RequestUpdate BeamSearch::update_of(Beam beam) const {
  RequestUpdate update;
  const size_t prompt_len = std::min(prompt_.size(), beam.token_ids.size());
  update.token_ids.assign(beam.token_ids.begin() + static_cast<std::ptrdiff_t>(prompt_len),
                          beam.token_ids.end());
  Detokenizer detokenizer(
      engine_.text().tokenizer,
      {.skip_special = request_.sampling.skip_special_tokens, .continues = true});
  const size_t shown = update.token_ids.size() - (beam.has_ended ? 1 : 0);
  for (const TokenId token : std::span(update.token_ids).first(shown)) {
    update.text += detokenizer.push(token);
  }
  update.text += detokenizer.flush();
  update.logprobs = std::move(beam.logprobs);
  update.finish_reason = beam.has_ended ? FinishReason::kStop : FinishReason::kLength;
  update.num_prompt_tokens = static_cast<int32_t>(prompt_.size());
  update.num_output_tokens = static_cast<int32_t>(update.token_ids.size());
  update.num_cached_tokens = first_update_.num_cached_tokens;
  update.timings = first_update_.timings;
  const std::chrono::duration<double, std::milli> rest =
      std::chrono::steady_clock::now() - first_token_;
  update.timings.predicted_ms = rest.count();
  return update;
}

}  // namespace warprow
