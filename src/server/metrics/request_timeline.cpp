// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/request_timeline.h"

#include "server/response/answer_json.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RequestEvent::Kind;
using TimePoint = EngineClock::time_point;

constexpr std::array<const char*, 3> kGraphNames = {"eager", "pieces", "whole"};

size_t graph_mode(const StepTrace& step) {
  return static_cast<size_t>(std::clamp<int>(step.graph_mode, 0, 2));
}

const char* graph_name(const StepTrace& step) { return kGraphNames.at(graph_mode(step)); }

class TimelineMaker {
 public:
  TimelineMaker(const ExplainedChoice& choice, TimePoint until, bool with_steps)
      : choice_(choice), with_steps_(with_steps), start_(choice.record.arrived), until_(until) {
    TimePoint last_done{};
    for (const StepTrace& step : choice.steps) {
      // Steps overlap, so a step's own time begins where the one before ended.
      begun_.push_back(begun_.empty() ? step.planned : std::max(step.planned, last_done));
      last_done = step.done;
    }
  }

  RequestTimeline make() {
    if (choice_.history != nullptr) {
      walk(choice_.history->list());
    }
    return std::move(out_);
  }

 private:
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
          out_.prefill_ms += ms_between(admitted_at_, event.at);
          add("first_token", event.at, {{"step", event.first_step}});
          add_decode(event, events.subspan(i + 1));
          break;
        case Kind::kPreempted:
          ++out_.num_preemptions;
          add("preempted", event.at, {{"step", event.first_step}, {"tokens", event.num}});
          wait_from(event, next);
          break;
        case Kind::kHeld:
          out_.num_held += event.num_steps;
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

  void add(const char* name, TimePoint at, const Json& more) {
    Json event = {{"event", name}, {"at_ms", rounded_ms(ms_between(start_, at))}};
    event.update(more);
    out_.events.push_back(std::move(event));
  }

  // From its arrival or preemption until it got a row, or until now.
  void wait_from(const RequestEvent& from, const RequestEvent* next) {
    const bool was_admitted = next != nullptr && next->kind == Kind::kAdmitted;
    const TimePoint until = next != nullptr ? next->at : until_;
    const int64_t admitted_step =
        was_admitted ? next->first_step : std::numeric_limits<int64_t>::max();
    WaitTime wait;
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
    }
    add_wait(wait, planned_one, reason, covered, until);
    (from.kind == Kind::kArrived ? out_.queue_ms : out_.preempted_ms) += wait.ms;
    (from.kind == Kind::kArrived ? out_.first_wait : out_.later_wait) = wait;
    Json reasons = Json::array();
    if (wait.under_way_ms > 0) {
      reasons.push_back({{"reason", "step_under_way"}, {"ms", rounded_ms(wait.under_way_ms)}});
    }
    for (size_t i = 1; i < kNumWaitReasons; ++i) {
      if (wait.by_reason.at(i) > 0) {
        reasons.push_back({{"reason", wait_reason_name(static_cast<WaitReason>(i))},
                           {"ms", rounded_ms(wait.by_reason.at(i))}});
      }
    }
    add("waited", from.at, {{"ms", rounded_ms(wait.ms)}, {"reasons", reasons}});
  }

  static void add_wait(
      WaitTime& wait, bool planned_one, WaitReason reason, TimePoint from, TimePoint to) {
    const double ms = std::max(0.0, ms_between(from, to));
    // A step that left no request waiting was planned before this one came to the scheduler.
    (planned_one && reason != WaitReason::kNone ? wait.by_reason.at(static_cast<size_t>(reason))
                                                : wait.under_way_ms) += ms;
  }

  void take_admission(const RequestEvent& event) {
    admitted_at_ = event.at;
    if (out_.num_preemptions == 0) {
      out_.num_cached = event.num;
    } else {
      out_.num_again += event.other - event.num;
      out_.num_again_cached += event.num;
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
    out_.num_chunk_steps += event.num_steps;
    out_.num_chunk_toks += event.num;
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
      more["ms"] = rounded_ms(ms);
      more["rows"] = most_rows;
      out_.most_chunk_rows = std::max(out_.most_chunk_rows, most_rows);
    }
    add("chunk", event.at, more);
  }

  // The steps behind a first token, until the request was preempted or ended.
  void add_decode(const RequestEvent& first, std::span<const RequestEvent> later) {
    const auto* const end =
        std::find_if(later.data(), later.data() + later.size(), [](const RequestEvent& event) {
          return event.kind == Kind::kPreempted || event.kind == Kind::kEnded;
        });
    const bool is_over = end != later.data() + later.size();
    const TimePoint until = is_over ? end->at : until_;
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
    out_.decode_ms += ms_between(first.at, until);
    if (sum.num_steps == 0) {
      return;
    }
    const auto steps = static_cast<double>(sum.num_steps);
    add("decode",
        first.at,
        {{"ms", rounded_ms(ms_between(first.at, until))},
         {"first_step", first_step},
         {"last_step", newest_step},
         {"steps", sum.num_steps},
         {"mean_step_ms", rounded_ms(sum.ms / steps)},
         {"mean_rows", std::round(10 * static_cast<double>(sum.rows) / steps) / 10},
         {"max_rows", sum.most_rows},
         {"steps_with_prompts", sum.num_with_prompts},
         {"prompt_tokens_beside", sum.prompt_toks},
         {"slowest_step",
          {{"step", sum.slowest->step},
           {"ms", rounded_ms(sum.slowest_ms)},
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
    out_.decode.num_steps += sum.num_steps;
    out_.decode.ms += sum.ms;
    out_.decode.rows += sum.rows;
    out_.decode.num_with_prompts += sum.num_with_prompts;
    out_.decode.prompt_toks += sum.prompt_toks;
    out_.decode.with_prompts_ms += sum.with_prompts_ms;
    for (size_t i = 0; i < sum.graphs.size(); ++i) {
      out_.decode.graphs.at(i) += sum.graphs.at(i);
    }
  }

  void add_step(size_t i, const char* kind) {
    if (!with_steps_) {
      return;
    }
    const StepTrace& step = choice_.steps[i];
    out_.steps.push_back({{"step", step.step},
                          {"kind", kind},
                          {"at_ms", rounded_ms(ms_between(start_, begun_[i]))},
                          {"ms", rounded_ms(own_ms(i))},
                          {"rows", step.num_rows},
                          {"tokens", step.num_toks},
                          {"prompt_tokens", step.num_prefill_toks},
                          {"graph", graph_name(step)}});
  }

  const ExplainedChoice& choice_;
  bool with_steps_;
  TimePoint start_;
  TimePoint until_;
  std::vector<TimePoint> begun_;  // of each step
  TimePoint admitted_at_{};
  RequestTimeline out_;
};

}  // namespace

double ms_between(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

RequestTimeline make_timeline(const ExplainedChoice& choice,
                              EngineClock::time_point until,
                              bool with_steps) {
  return TimelineMaker(choice, until, with_steps).make();
}

}  // namespace warprow
