// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/explanation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RequestEvent::Kind;
using TimePoint = EngineClock::time_point;

constexpr std::array<const char*, 3> kGraphNames = {"eager", "pieces", "whole"};
constexpr size_t kNumReasons = 8;

double ms_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// Milliseconds without needless digits.
Json rounded(double ms) { return std::round(ms * 1000) / 1000; }

const char* graph_name(const StepTrace& step) {
  const auto mode = static_cast<size_t>(std::clamp<int>(step.graph_mode, 0, 2));
  return kGraphNames.at(mode);
}

// What steps had in common while the request decoded.
struct DecodeSummary {
  int64_t num_steps = 0;
  int64_t rows = 0;  // summed
  int32_t most_rows = 0;
  double ms = 0;
  double slowest_ms = 0;
  const StepTrace* slowest = nullptr;
  int64_t num_with_prompts = 0;
  int64_t prompt_toks = 0;  // of others
  double with_prompts_ms = 0;
  std::array<int64_t, 3> graphs{};
};

class Explainer {
 public:
  Explainer(const ExplainedChoice& choice, bool with_steps)
      : choice_(choice), with_steps_(with_steps), start_(choice.record.arrived) {
    const ChoiceRecord& record = choice.record;
    ended_ = record.ended != TimePoint{};
    now_ = ended_ ? record.ended : EngineClock::now();
    for (const StepTrace& step : choice.steps) {
      // Steps overlap, so a step's own time begins where the one before ended.
      begun_.push_back(begun_.empty() ? step.planned : std::max(step.planned, last_done_));
      last_done_ = step.done;
    }
  }

  Json explain() {
    if (choice_.history != nullptr) {
      walk(choice_.history->list());
    }
    const ChoiceRecord& record = choice_.record;
    Json out;
    out["choice"] = record.choice;
    out["state"] = state();
    out["prompt_tokens"] = record.num_prompt_toks;
    out["cached_tokens"] = num_cached_;
    out["output_tokens"] = record.num_output_toks;
    out["max_tokens"] = record.max_tokens;
    out["total_ms"] = rounded(ms_between(start_, now_));
    out["queue_ms"] = rounded(queue_ms_);
    out["prefill_ms"] = rounded(prefill_ms_);
    out["decode_ms"] = rounded(decode_ms_);
    out["preempted_ms"] = rounded(preempted_ms_);
    out["preemptions"] = num_preemptions_;
    out["ttft_ms"] =
        record.num_output_toks > 0 ? rounded(ms_between(start_, record.first_token)) : Json();
    out["known"] = choice_.history != nullptr;
    out["events_left_out"] = choice_.history != nullptr ? choice_.history->num_left_out : 0;
    out["why"] = why();
    out["timeline"] = std::move(timeline_);
    if (with_steps_) {
      const size_t excess = steps_.size() - std::min(steps_.size(), kMostSteps);
      steps_.erase(steps_.begin(), steps_.begin() + static_cast<Json::difference_type>(excess));
      out["steps_left_out"] = excess;
      out["steps"] = std::move(steps_);
    }
    return out;
  }

 private:
  struct Wait {
    double ms = 0;
    std::array<double, kNumReasons> by_reason{};
    double under_way_ms = 0;  // until the first step planned after it came
    int32_t running = 0;      // at the end of it
  };

  void walk(std::span<const RequestEvent> events) {
    for (size_t i = 0; i < events.size(); ++i) {
      const RequestEvent& event = events[i];
      const RequestEvent* const next = i + 1 < events.size() ? &events[i + 1] : nullptr;
      switch (event.kind) {
        case Kind::kArrived:
          add("arrived", event.at, {{"waiting", event.num}, {"running", event.other}});
          wait_from(event, next);
          break;
        case Kind::kAdmitted:
          take_admission(event);
          break;
        case Kind::kChunk:
          add_chunk(event);
          break;
        case Kind::kFirstToken:
          prefill_ms_ += ms_between(admitted_at_, event.at);
          add("first_token", event.at, {{"step", event.first_step}});
          add_decode(event, events.subspan(i + 1));
          break;
        case Kind::kPreempted:
          ++num_preemptions_;
          add("preempted", event.at, {{"step", event.first_step}, {"tokens", event.num}});
          wait_from(event, next);
          break;
        case Kind::kHeld:
          num_held_ += event.num_steps;
          add("held", event.at, {{"step", event.first_step}, {"steps", event.num_steps}});
          break;
        case Kind::kEnded:
          add("ended",
              event.at,
              {{"step", event.first_step},
               {"reason", finish_reason_name(static_cast<FinishReason>(event.num))}});
          break;
      }
    }
  }

  void add(const char* name, TimePoint at, Json more) {
    Json event = {{"event", name}, {"at_ms", rounded(ms_between(start_, at))}};
    event.update(more);
    timeline_.push_back(std::move(event));
  }

  // From its arrival or preemption until it got a row, or until now.
  void wait_from(const RequestEvent& from, const RequestEvent* next) {
    const bool was_admitted = next != nullptr && next->kind == Kind::kAdmitted;
    const TimePoint until = next != nullptr ? next->at : now_;
    const int64_t admitted_step =
        was_admitted ? next->first_step : std::numeric_limits<int64_t>::max();
    Wait wait;
    wait.ms = ms_between(from.at, until);
    TimePoint covered = from.at;
    WaitReason reason = WaitReason::kNone;
    bool planned_one = false;
    for (const StepTrace& step : choice_.steps) {
      if (step.step <= from.last_step && from.kind == Kind::kArrived) {
        continue;
      }
      if (step.step < from.first_step || step.step >= admitted_step || step.planned > until) {
        continue;
      }
      add_wait(wait, planned_one, reason, covered, std::max(step.planned, covered));
      covered = std::max(step.planned, covered);
      reason = step.wait_reason;
      planned_one = true;
      wait.running = step.num_running;
    }
    add_wait(wait, planned_one, reason, covered, until);
    (from.kind == Kind::kArrived ? queue_ms_ : preempted_ms_) += wait.ms;
    (from.kind == Kind::kArrived ? first_wait_ : later_wait_) = wait;
    Json reasons = Json::array();
    if (wait.under_way_ms > 0) {
      reasons.push_back({{"reason", "step_under_way"}, {"ms", rounded(wait.under_way_ms)}});
    }
    for (size_t i = 1; i < kNumReasons; ++i) {
      if (wait.by_reason.at(i) > 0) {
        reasons.push_back({{"reason", wait_reason_name(static_cast<WaitReason>(i))},
                           {"ms", rounded(wait.by_reason.at(i))}});
      }
    }
    add("waited", from.at, {{"ms", rounded(wait.ms)}, {"reasons", reasons}});
  }

  static void add_wait(
      Wait& wait, bool planned_one, WaitReason reason, TimePoint from, TimePoint to) {
    const double ms = std::max(0.0, ms_between(from, to));
    // A step that left no request waiting was planned before this one came to the scheduler.
    (planned_one && reason != WaitReason::kNone ? wait.by_reason.at(static_cast<size_t>(reason))
                                                : wait.under_way_ms) += ms;
  }

  void take_admission(const RequestEvent& event) {
    admitted_at_ = event.at;
    if (num_preemptions_ == 0) {
      num_cached_ = event.num;
    } else {
      num_again_ += event.other - event.num;
      num_again_cached_ += event.num;
    }
    add("admitted",
        event.at,
        {{"step", event.first_step}, {"tokens", event.other}, {"cached_tokens", event.num}});
  }

  void add_chunk(const RequestEvent& event) {
    Json more = {{"step", event.first_step},
                 {"steps", event.num_steps},
                 {"tokens", event.num},
                 {"computed_before", event.other}};
    ++num_chunks_;
    num_chunk_steps_ += event.num_steps;
    num_chunk_toks_ += event.num;
    double ms = 0;
    int32_t most_rows = 0;
    bool known = false;
    for (size_t i = 0; i < choice_.steps.size(); ++i) {
      const StepTrace& step = choice_.steps[i];
      if (step.step < event.first_step || step.step > event.last_step || step.num_toks == 0) {
        continue;
      }
      ms += own_ms(i);
      most_rows = std::max(most_rows, step.num_rows);
      more["graph"] = graph_name(step);
      more["step_tokens"] = step.num_toks;
      known = true;
      add_step(i, "chunk");
    }
    if (known) {
      more["ms"] = rounded(ms);
      more["rows"] = most_rows;
      most_chunk_rows_ = std::max(most_chunk_rows_, most_rows);
    }
    add("chunk", event.at, std::move(more));
  }

  // The steps behind a first token, until the request was preempted or ended.
  void add_decode(const RequestEvent& first, std::span<const RequestEvent> later) {
    const auto* const end =
        std::find_if(later.data(), later.data() + later.size(), [](const RequestEvent& event) {
          return event.kind == Kind::kPreempted || event.kind == Kind::kEnded;
        });
    const bool is_over = end != later.data() + later.size();
    const TimePoint until = is_over ? end->at : now_;
    // The step that preempts it does not run it.
    const int64_t last_step = !is_over                        ? std::numeric_limits<int64_t>::max()
                              : end->kind == Kind::kPreempted ? end->first_step - 1
                                                              : end->last_step;
    DecodeSummary sum;
    int64_t first_step = 0;
    int64_t newest_step = 0;
    for (size_t i = 0; i < choice_.steps.size(); ++i) {
      const StepTrace& step = choice_.steps[i];
      if (step.step <= first.first_step || step.step > last_step || step.num_toks == 0) {
        continue;
      }
      first_step = first_step == 0 ? step.step : first_step;
      newest_step = step.step;
      add_to(sum, i);
      add_step(i, "decode");
    }
    decode_ms_ += ms_between(first.at, until);
    if (sum.num_steps == 0) {
      return;
    }
    const auto steps = static_cast<double>(sum.num_steps);
    add("decode",
        first.at,
        {{"ms", rounded(ms_between(first.at, until))},
         {"first_step", first_step},
         {"last_step", newest_step},
         {"steps", sum.num_steps},
         {"mean_step_ms", rounded(sum.ms / steps)},
         {"mean_rows", std::round(10 * static_cast<double>(sum.rows) / steps) / 10},
         {"max_rows", sum.most_rows},
         {"steps_with_prompts", sum.num_with_prompts},
         {"prompt_tokens_beside", sum.prompt_toks},
         {"slowest_step",
          {{"step", sum.slowest->step},
           {"ms", rounded(sum.slowest_ms)},
           {"rows", sum.slowest->num_rows},
           {"prompt_tokens", sum.slowest->num_prefill_toks}}},
         {"graphs",
          {{"whole", sum.graphs[2]}, {"pieces", sum.graphs[1]}, {"eager", sum.graphs[0]}}}});
    join(sum);
  }

  [[nodiscard]] double own_ms(size_t i) const {
    return std::max(0.0, ms_between(begun_[i], choice_.steps[i].done));
  }

  void add_to(DecodeSummary& sum, size_t i) const {
    const StepTrace& step = choice_.steps[i];
    const double ms = own_ms(i);
    ++sum.num_steps;
    sum.ms += ms;
    sum.rows += step.num_rows;
    sum.most_rows = std::max(sum.most_rows, step.num_rows);
    if (sum.slowest == nullptr || ms > sum.slowest_ms) {
      sum.slowest = &step;
      sum.slowest_ms = ms;
    }
    if (step.num_prefill_toks > 0) {
      ++sum.num_with_prompts;
      sum.prompt_toks += step.num_prefill_toks;
      sum.with_prompts_ms += ms;
    }
    ++sum.graphs.at(static_cast<size_t>(std::clamp<int>(step.graph_mode, 0, 2)));
  }

  void join(const DecodeSummary& sum) {
    decode_.num_steps += sum.num_steps;
    decode_.ms += sum.ms;
    decode_.rows += sum.rows;
    decode_.num_with_prompts += sum.num_with_prompts;
    decode_.prompt_toks += sum.prompt_toks;
    decode_.with_prompts_ms += sum.with_prompts_ms;
    for (size_t i = 0; i < sum.graphs.size(); ++i) {
      decode_.graphs.at(i) += sum.graphs.at(i);
    }
  }

  void add_step(size_t i, const char* kind) {
    if (!with_steps_) {
      return;
    }
    const StepTrace& step = choice_.steps[i];
    steps_.push_back({{"step", step.step},
                      {"kind", kind},
                      {"at_ms", rounded(ms_between(start_, begun_[i]))},
                      {"ms", rounded(own_ms(i))},
                      {"rows", step.num_rows},
                      {"tokens", step.num_toks},
                      {"prompt_tokens", step.num_prefill_toks},
                      {"graph", graph_name(step)}});
  }

  [[nodiscard]] const char* state() const {
    if (ended_) {
      return finish_reason_name(choice_.record.finish_reason);
    }
    if (choice_.history == nullptr || choice_.history->num_events == 0) {
      return "pending";
    }
    const Kind last = choice_.history->list().back().kind;
    return last == Kind::kArrived ? "waiting" : last == Kind::kPreempted ? "preempted" : "running";
  }

  [[nodiscard]] std::string reason_text(WaitReason reason, const Wait& wait) const {
    switch (reason) {
      case WaitReason::kRows:
        return fmt::format("because {} requests ran, as many as max_num_seqs allows",
                           std::max(wait.running, choice_.facts.max_num_seqs));
      case WaitReason::kTokens:
        return fmt::format("because the steps were full (max_num_batched_tokens {})",
                           choice_.facts.max_num_batched_tokens);
      case WaitReason::kRation:
        return "because steps computed few prompt tokens, so that streams that ran went on";
      case WaitReason::kBlocks:
        return fmt::format("for KV blocks (the cache has {})", choice_.facts.kv.num_blocks - 1);
      case WaitReason::kAdapter:
        return fmt::format("for its adapter's place (max_loras {})", choice_.facts.max_loras);
      case WaitReason::kPreemption:
        return "because the steps preempted requests for want of KV blocks";
      case WaitReason::kOutputs:
        return "for its own last outputs";
      case WaitReason::kNone:
        break;
    }
    return "";
  }

  [[nodiscard]] std::string wait_text(const Wait& wait) const {
    std::string text;
    const auto add_part = [&text](double ms, const std::string& why) {
      text += fmt::format("{} {:.1f} ms {}", text.empty() ? "" : ",", ms, why);
    };
    for (size_t i = 1; i < kNumReasons; ++i) {
      if (wait.by_reason.at(i) > 0) {
        add_part(wait.by_reason.at(i), reason_text(static_cast<WaitReason>(i), wait));
      }
    }
    if (wait.under_way_ms > 0.05 || text.empty()) {
      add_part(wait.under_way_ms, "for the step that was under way");
    }
    return text;
  }

  void add_prefix_reason(Json& why) const {
    const int32_t num_toks = choice_.record.num_prompt_toks;
    why.push_back(
        num_cached_ > 0
            ? fmt::format(
                  "{} of its {} prompt tokens were in the prefix cache.", num_cached_, num_toks)
            : fmt::format("None of its {} prompt tokens were in the prefix cache.", num_toks));
  }

  void add_decode_reason(Json& why) const {
    if (decode_.num_steps == 0) {
      return;
    }
    const auto steps = static_cast<double>(decode_.num_steps);
    std::string text = fmt::format(
        "Then it decoded for {:.1f} ms in {} steps of {:.2f} ms, with {:.1f} other rows",
        decode_ms_,
        decode_.num_steps,
        decode_.ms / steps,
        static_cast<double>(decode_.rows) / steps - 1);
    const int64_t num_plain = decode_.num_steps - decode_.num_with_prompts;
    if (decode_.num_with_prompts > 0) {
      text += fmt::format(
          "; {} of the steps also computed {} prompt tokens of others and took "
          "{:.2f} ms",
          decode_.num_with_prompts,
          decode_.prompt_toks,
          decode_.with_prompts_ms / static_cast<double>(decode_.num_with_prompts));
      if (num_plain > 0) {
        text +=
            fmt::format(", the others {:.2f}",
                        (decode_.ms - decode_.with_prompts_ms) / static_cast<double>(num_plain));
      }
    }
    why.push_back(text + ".");
    why.push_back(
        fmt::format("Of these steps {} ran as one graph, {} in pieces, {} without graphs.",
                    decode_.graphs[2],
                    decode_.graphs[1],
                    decode_.graphs[0]));
  }

  // Sentences, in the order of what happened.
  [[nodiscard]] Json why() const {
    Json why = Json::array();
    if (choice_.history == nullptr) {
      why.push_back("The engine's thread has not seen it yet, or has forgotten it for newer ones.");
      return why;
    }
    why.push_back(
        fmt::format("It waited {:.1f} ms for a row:{}.", queue_ms_, wait_text(first_wait_)));
    if (num_chunks_ > 0) {
      add_prefix_reason(why);
      why.push_back(
          fmt::format("{} tokens were computed in {} step{}, with at most {} other rows; its "
                      "prefill took {:.1f} ms.",
                      num_chunk_toks_,
                      num_chunk_steps_,
                      num_chunk_steps_ == 1 ? "" : "s",
                      std::max(most_chunk_rows_ - 1, 0),
                      prefill_ms_));
    }
    if (num_preemptions_ > 0) {
      why.push_back(fmt::format(
          "It was preempted {} time{}, as the cache had no block left, and waited {:.1f} ms to "
          "come back (the last time{}); then {} tokens were found in the cache and {} computed "
          "again.",
          num_preemptions_,
          num_preemptions_ == 1 ? "" : "s",
          preempted_ms_,
          wait_text(later_wait_),
          num_again_cached_,
          num_again_));
    }
    if (num_held_ > 0) {
      why.push_back(fmt::format("In {} step{} it drew no token, as its grammar's mask was late.",
                                num_held_,
                                num_held_ == 1 ? "" : "s"));
    }
    add_decode_reason(why);
    if (decode_ms_ > 0 && decode_.num_steps == 0 && choice_.record.num_output_toks > 1) {
      why.push_back("Its steps are too long ago: the engine keeps the newest 16384.");
    }
    return why;
  }

  const ExplainedChoice& choice_;
  bool with_steps_;
  bool ended_ = false;
  TimePoint start_;
  TimePoint now_;
  TimePoint last_done_{};
  std::vector<TimePoint> begun_;  // of each step
  Json timeline_ = Json::array();
  Json steps_ = Json::array();
  TimePoint admitted_at_{};
  Wait first_wait_;
  Wait later_wait_;  // the last one
  double queue_ms_ = 0;
  double prefill_ms_ = 0;
  double decode_ms_ = 0;
  double preempted_ms_ = 0;
  int32_t num_cached_ = 0;
  int32_t num_preemptions_ = 0;
  int32_t num_again_ = 0;
  int32_t num_again_cached_ = 0;
  int32_t num_held_ = 0;
  int32_t num_chunks_ = 0;
  int32_t num_chunk_steps_ = 0;
  int32_t num_chunk_toks_ = 0;
  int32_t most_chunk_rows_ = 0;
  DecodeSummary decode_;
};

}  // namespace

Json explain_choice(const ExplainedChoice& choice, bool with_steps) {
  return Explainer(choice, with_steps).explain();
}

Json explanation_json(const Engine& engine,
                      const std::vector<ChoiceRecord>& choices,
                      bool with_steps) {
  Json out;
  out["id"] = choices.front().answer;
  out["object"] = "request.explanation";
  out["endpoint"] = choices.front().endpoint;
  out["age_s"] = rounded(ms_between(choices.front().arrived, EngineClock::now()) / 1e3);
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
