// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/explanation.h"

#include "server/response/answer_json.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAtOnceMs = 0.1;

// Why a choice took its time, in sentences.
class Reasons {
 public:
  Reasons(const ExplainedChoice& choice, const RequestTimeline& line)
      : choice_(choice), line_(line) {}

  // Sentences, in the order of what happened.
  [[nodiscard]] Json all() const {
    Json why = Json::array();
    if (choice_.history == nullptr) {
      why.push_back("The engine's thread has not seen it yet, or has forgotten it for newer ones.");
      return why;
    }
    why.push_back(line_.queue_ms < kAtOnceMs ? "It got a row at once."
                                             : fmt::format("It waited {:.1f} ms for a row:{}.",
                                                           line_.queue_ms,
                                                           wait_text(line_.first_wait)));
    if (line_.num_chunk_steps > 0) {
      add_prefix_reason(why);
      why.push_back(
          fmt::format("{} tokens were computed in {} step{}, with at most {} other rows; its "
                      "prefill took {:.1f} ms.",
                      line_.num_chunk_toks,
                      line_.num_chunk_steps,
                      line_.num_chunk_steps == 1 ? "" : "s",
                      std::max(line_.most_chunk_rows - 1, 0),
                      line_.prefill_ms));
    }
    if (line_.num_preemptions > 0) {
      why.push_back(fmt::format(
          "It was preempted {} time{}, as the cache had no block left, and waited {:.1f} ms to "
          "come back (the last time{}); then {} tokens were found in the cache and {} computed "
          "again.",
          line_.num_preemptions,
          line_.num_preemptions == 1 ? "" : "s",
          line_.preempted_ms,
          wait_text(line_.later_wait),
          line_.num_again_cached,
          line_.num_again));
    }
    if (line_.num_held > 0) {
      why.push_back(fmt::format("In {} step{} it drew no token, as its grammar's mask was late.",
                                line_.num_held,
                                line_.num_held == 1 ? "" : "s"));
    }
    add_decode_reason(why);
    if (line_.decode_ms > 0 && line_.decode.num_steps == 0 && choice_.record.num_output_toks > 1) {
      why.push_back("Its steps are too long ago: the engine keeps the newest 16384.");
    }
    return why;
  }

 private:
  [[nodiscard]] std::string reason_text(WaitReason reason) const {
    switch (reason) {
      case WaitReason::kRows:
        return fmt::format("because {} requests ran, as many as max_num_seqs allows",
                           choice_.facts.max_num_seqs);
      case WaitReason::kTokens:
        return fmt::format("because the steps were full (max_num_batched_tokens {})",
                           choice_.facts.max_num_batched_tokens);
      case WaitReason::kRation:
        return "because steps limited their prompt tokens to keep running streams fast";
      case WaitReason::kBlocks:
        return fmt::format("for KV blocks (the cache has {})", choice_.facts.kv.num_blocks - 1);
      case WaitReason::kAdapter:
        return fmt::format("for its adapter's place (max_loras {})", choice_.facts.max_loras);
      case WaitReason::kPreemption:
        return "because the steps preempted requests for want of KV blocks";
      case WaitReason::kOutputs:
        return "for its outputs that were still in flight";
      case WaitReason::kNone:
        break;
    }
    return "";
  }

  [[nodiscard]] std::string wait_text(const WaitTime& wait) const {
    std::string text;
    const auto add_part = [&text](double ms, const std::string& why) {
      text += fmt::format("{} {:.1f} ms {}", text.empty() ? "" : ",", ms, why);
    };
    for (size_t i = 1; i < kNumWaitReasons; ++i) {
      if (wait.by_reason.at(i) > 0) {
        add_part(wait.by_reason.at(i), reason_text(static_cast<WaitReason>(i)));
      }
    }
    if (wait.under_way_ms >= kAtOnceMs || text.empty()) {
      add_part(wait.under_way_ms, "for the step that was under way");
    }
    return text;
  }

  void add_prefix_reason(Json& why) const {
    const int32_t num_toks = choice_.record.num_prompt_toks;
    why.push_back(
        line_.num_cached > 0
            ? fmt::format("{} of its {} prompt tokens were in the prefix cache.",
                          line_.num_cached,
                          num_toks)
            : fmt::format("None of its {} prompt tokens were in the prefix cache.", num_toks));
  }

  void add_decode_reason(Json& why) const {
    if (line_.decode.num_steps == 0) {
      return;
    }
    const auto steps = static_cast<double>(line_.decode.num_steps);
    std::string text = fmt::format(
        "Then it decoded for {:.1f} ms in {} steps of {:.2f} ms, with {:.1f} other rows",
        line_.decode_ms,
        line_.decode.num_steps,
        line_.decode.ms / steps,
        static_cast<double>(line_.decode.rows) / steps - 1);
    const int64_t num_plain = line_.decode.num_steps - line_.decode.num_with_prompts;
    if (line_.decode.num_with_prompts > 0) {
      text += fmt::format(
          "; {} of the steps also computed {} prompt tokens of others and took "
          "{:.2f} ms",
          line_.decode.num_with_prompts,
          line_.decode.prompt_toks,
          line_.decode.with_prompts_ms / static_cast<double>(line_.decode.num_with_prompts));
      if (num_plain > 0) {
        text += fmt::format(
            ", the others {:.2f}",
            (line_.decode.ms - line_.decode.with_prompts_ms) / static_cast<double>(num_plain));
      }
    }
    why.push_back(text + ".");
    why.push_back(
        fmt::format("Of these steps {} ran as one graph, {} in pieces, {} without graphs.",
                    line_.decode.graphs[2],
                    line_.decode.graphs[1],
                    line_.decode.graphs[0]));
  }

  const ExplainedChoice& choice_;
  const RequestTimeline& line_;
};

const char* state_of(const ExplainedChoice& choice) {
  if (choice.record.ended != EngineClock::time_point{}) {
    return finish_reason_name(choice.record.finish_reason);
  }
  if (choice.history == nullptr || choice.history->num_events == 0) {
    return "pending";
  }
  using Kind = RequestEvent::Kind;
  const Kind last = choice.history->list().back().kind;
  return last == Kind::kArrived ? "waiting" : last == Kind::kPreempted ? "preempted" : "running";
}

}  // namespace

Json explain_choice(const ExplainedChoice& choice, bool with_steps) {
  const ChoiceRecord& record = choice.record;
  const EngineClock::time_point until =
      record.ended != EngineClock::time_point{} ? record.ended : EngineClock::now();
  RequestTimeline line = make_timeline(choice, until, with_steps);
  Json out;
  out["choice"] = record.choice;
  out["state"] = state_of(choice);
  out["prompt_tokens"] = record.num_prompt_toks;
  out["cached_tokens"] = line.num_cached;
  out["output_tokens"] = record.num_output_toks;
  out["max_tokens"] = record.max_tokens;
  out["total_ms"] = rounded_ms(ms_between(record.arrived, until));
  out["queue_ms"] = rounded_ms(line.queue_ms);
  out["prefill_ms"] = rounded_ms(line.prefill_ms);
  out["decode_ms"] = rounded_ms(line.decode_ms);
  out["preempted_ms"] = rounded_ms(line.preempted_ms);
  out["preemptions"] = line.num_preemptions;
  out["ttft_ms"] = record.num_output_toks > 0
                       ? Json(rounded_ms(ms_between(record.arrived, record.first_token)))
                       : Json();
  out["known"] = choice.history != nullptr;
  out["events_left_out"] = choice.history != nullptr ? choice.history->num_left_out : 0;
  out["why"] = Reasons(choice, line).all();
  out["timeline"] = std::move(line.events);
  if (with_steps) {
    const size_t excess = line.steps.size() - std::min(line.steps.size(), kMostSteps);
    line.steps.erase(line.steps.begin(),
                     line.steps.begin() + static_cast<Json::difference_type>(excess));
    out["steps_left_out"] = excess;
    out["steps"] = std::move(line.steps);
  }
  return out;
}

Json explanation_json(const Engine& engine,
                      const std::vector<ChoiceRecord>& choices,
                      bool with_steps) {
  Json out;
  out["id"] = choices.front().answer;
  out["object"] = "request.explanation";
  out["endpoint"] = choices.front().endpoint;
  out["age_s"] = rounded_ms(ms_between(choices.front().arrived, EngineClock::now()) / 1e3);
  out["choices"] = Json::array();
  const std::vector<StepTrace> steps = engine.steps().since(choices.front().arrived);
  for (const ChoiceRecord& record : choices) {
    const std::optional<RequestHistory> history = engine.history(record.id);
    const ExplainedChoice choice{.record = record,
                                 .history = history ? &*history : nullptr,
                                 .steps = steps,
                                 .facts = engine.model_facts()};
    out["choices"].push_back(explain_choice(choice, with_steps));
  }
  return out;
}

}  // namespace warprow
