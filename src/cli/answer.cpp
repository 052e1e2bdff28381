// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"

#include "server/response/answer_json.h"
#include "server/response/logprobs_json.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace warprow {
namespace {

AnswerJson logprobs_json(const std::vector<LogprobEntry>& entries) {
  AnswerJson out = AnswerJson::array();
  for (const LogprobEntry& entry : entries) {
    AnswerJson top = AnswerJson::array();
    for (const TokenLogprob& candidate : entry.top) {
      top.push_back(
          {{"token_id", candidate.token_id}, {"logprob", shown_float(candidate.logprob)}});
    }
    out.push_back({{"token_id", entry.token_id},
                   {"logprob", shown_float(entry.logprob)},
                   {"rank", entry.rank},
                   {"top", std::move(top)}});
  }
  return out;
}

// A list of vectors, each with `width` numbers.
AnswerJson vectors_json(const std::vector<float>& values, int32_t width) {
  AnswerJson out = AnswerJson::array();
  for (auto at = values.begin(); at != values.end(); at += width) {
    AnswerJson vector = AnswerJson::array();
    std::transform(at, at + width, std::back_inserter(vector), shown_float);
    out.push_back(std::move(vector));
  }
  return out;
}

AnswerJson usage_json(std::span<const Answer> answers) {
  const RequestUpdate& first = answers.front();
  const int64_t num_output_tokens = count_output_tokens(answers);
  return {{"prompt_tokens", first.num_prompt_tokens},
          {"completion_tokens", num_output_tokens},
          {"total_tokens", first.num_prompt_tokens + num_output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", first.num_cached_tokens}}}};
}

// The prefill produces the first token of each choice; the other tokens take predicted_ms.
AnswerJson timings_json(std::span<const Answer> answers) {
  const RequestUpdate& last = answers.front();
  const RequestTimings& timings = last.timings;
  double predicted_ms = 0;
  int64_t num_timed = 0;
  for (const Answer& answer : answers) {
    predicted_ms = std::max(predicted_ms, answer.timings.predicted_ms);
    num_timed += std::max(0, answer.num_output_tokens - 1);
  }
  return {{"queue_ms", rounded_ms(timings.queue_ms)},
          {"prompt_n", last.num_prompt_tokens - last.num_cached_tokens},
          {"prompt_ms", rounded_ms(timings.prompt_ms)},
          {"prompt_per_second",
           per_second(last.num_prompt_tokens - last.num_cached_tokens, timings.prompt_ms)},
          {"predicted_n", count_output_tokens(answers)},
          {"predicted_ms", rounded_ms(predicted_ms)},
          {"predicted_per_second", per_second(num_timed, predicted_ms)}};
}

AnswerJson choice_json(size_t index, const Answer& answer) {
  AnswerJson choice = {{"index", index},
                       {"token_ids", answer.token_ids},
                       {"text", answer.text},
                       {"finish_reason", finish_reason_name(answer.finish_reason)},
                       {"stop_reason", stop_reason_json(answer)}};
  choice["logprobs"] =
      answer.logprobs.empty() ? AnswerJson(nullptr) : logprobs_json(answer.logprobs);
  if (!answer.hidden_states.empty()) {
    choice["hidden_states"] = vectors_json(answer.hidden_states, answer.hidden_width);
  }
  return choice;
}

struct ErrorKind {
  const char* type;
  int code;
};

ErrorKind error_kind(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return {"invalid_request_error", 400};
    case ErrorCode::kNotFound:
      return {"not_found_error", 404};
    case ErrorCode::kUnsupported:
      return {"not_supported_error", 501};
    case ErrorCode::kBusy:
      return {"service_unavailable", 503};
    case ErrorCode::kCorrupt:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kInternal:
      break;
  }
  return {"internal_error", 500};
}

}  // namespace

const Answer* find_failed(std::span<const Answer> answers) {
  const auto failed = std::find_if(answers.begin(), answers.end(), [](const Answer& answer) {
    return answer.finish_reason == FinishReason::kError;
  });
  return failed == answers.end() ? nullptr : &*failed;
}

int64_t count_output_tokens(std::span<const Answer> answers) {
  int64_t sum = 0;
  for (const Answer& answer : answers) {
    sum += answer.num_output_tokens;
  }
  return sum;
}

AnswerJson answer_json(std::span<const TokenId> prompt_token_ids, std::span<const Answer> answers) {
  AnswerJson choices = AnswerJson::array();
  for (const Answer& answer : answers) {
    choices.push_back(choice_json(choices.size(), answer));
  }
  AnswerJson out;
  out["prompt_token_ids"] = std::vector<TokenId>(prompt_token_ids.begin(), prompt_token_ids.end());
  if (!answers.front().prompt_logprobs.empty()) {
    AnswerJson prompt = logprobs_json(answers.front().prompt_logprobs);
    prompt.insert(prompt.begin(), nullptr);
    out["prompt_logprobs"] = std::move(prompt);
  }
  out["choices"] = std::move(choices);
  out["usage"] = usage_json(answers);
  out["timings"] = timings_json(answers);
  return out;
}

AnswerJson error_json(const Error& error) {
  const ErrorKind kind = error_kind(error.code);
  AnswerJson body = {
      {"message", error.message}, {"type", kind.type}, {"param", nullptr}, {"code", kind.code}};
  AnswerJson out;
  out["error"] = std::move(body);
  return out;
}

AnswerJson stats_json(const EngineStats& stats) {
  AnswerJson out = {{"steps", stats.steps},
                    {"mixed_steps", stats.mixed_steps},
                    {"partial_prefill_steps", stats.partial_prefill_steps},
                    {"preemptions", stats.preemptions},
                    {"prefix_hit_tokens", stats.prefix_hit_tokens},
                    {"prompt_tokens", stats.prompt_tokens},
                    {"output_tokens", stats.output_tokens},
                    {"max_steps_in_flight", stats.max_steps_in_flight},
                    {"block_size", stats.block_size},
                    {"num_blocks", stats.num_blocks},
                    {"step_allocations", stats.step_allocations},
                    {"row_state_bytes", stats.row_state_bytes},
                    {"graphs_full", stats.graphs_full},
                    {"graphs_piecewise", stats.graphs_piecewise},
                    {"graphs_eager", stats.graphs_eager},
                    {"graph_captures", stats.graph_captures},
                    {"graph_evictions", stats.graph_evictions},
                    {"graph_bytes", stats.graph_bytes},
                    {"padded_toks", stats.padded_toks},
                    {"grammar_masks", stats.grammar_masks},
                    {"grammar_mask_us", stats.grammar_mask_us},
                    {"withheld_rows", stats.withheld_rows}};
  if (stats.max_drafts > 0) {
    out["spec_decode_num_drafts"] = stats.spec_decode_num_drafts;
    out["spec_decode_num_draft_tokens"] = stats.spec_decode_num_draft_tokens;
    out["spec_decode_num_accepted_tokens"] = stats.spec_decode_num_accepted_tokens;
    for (size_t i = 0; i < static_cast<size_t>(stats.max_drafts); ++i) {
      out["spec_decode_num_accepted_tokens_per_pos"].push_back(
          stats.spec_decode_num_accepted_tokens_per_pos[i]);
    }
    out["spec_decode_num_undrafted"] = stats.spec_decode_num_undrafted;
  }
  return out;
}

std::string json_line(const AnswerJson& json) { return json_text(json) + "\n"; }

}  // namespace warprow
