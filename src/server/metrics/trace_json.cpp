// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/server_watch.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

// Chrome's trace event format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kEngineProcess = 1;
constexpr int kRequestProcess = 2;
constexpr std::pair kHostTrack{kEngineProcess, 1};
constexpr int kFirstFlightThread = 2;
constexpr std::pair kForwardTrack{kEngineProcess, 4};
constexpr int kFirstMaskThread = 5;

double micros(EngineClock::time_point at) {
  return std::chrono::duration<double, std::micro>(at.time_since_epoch()).count();
}

Json event(const char* phase, std::string_view name, int process, int thread, double at) {
  Json out;
  out["ph"] = phase;
  out["name"] = name;
  out["pid"] = process;
  out["tid"] = thread;
  out["ts"] = at;
  return out;
}

void add_name(Json& events, const char* what, int process, int thread, std::string_view name) {
  Json out = event("M", what, process, thread, 0);
  out["args"]["name"] = name;
  events.push_back(std::move(out));
}

void add_span(Json& events,
              std::string_view name,
              std::pair<int, int> track,
              EngineClock::time_point from,
              EngineClock::time_point to,
              Json args = nullptr) {
  if (to < from) {
    return;
  }
  Json out = event("X", name, track.first, track.second, micros(from));
  out["dur"] = micros(to) - micros(from);
  if (!args.is_null()) {
    out["args"] = std::move(args);
  }
  events.push_back(std::move(out));
}

// device_free: the time when the previous step was done.
void add_step(Json& events, const StepTrace& step, EngineClock::time_point device_free) {
  const Json facts = {{"step", step.step},
                      {"rows", step.num_rows},
                      {"tokens", step.num_toks},
                      {"prefill_tokens", step.num_prefill_toks}};
  add_span(events, "schedule", kHostTrack, step.planned, step.launched);
  add_span(events, "launch", kHostTrack, step.launched, step.handed, facts);
  add_span(events, "wait for device", kHostTrack, step.awaited, step.done);
  // Two steps may be in flight, so even and odd steps have separate tracks.
  const std::pair flight{kEngineProcess, kFirstFlightThread + static_cast<int>(step.step % 2)};
  add_span(events,
           step.num_prefill_toks > 0 ? "step with prefill" : "step",
           flight,
           step.launched,
           step.done,
           facts);
  if (step.num_toks > 0) {
    // The end of the forward is recorded only if the step waits for masks. Else this span includes the sampling.
    const bool seen = step.forwarded != EngineClock::time_point();
    const EngineClock::time_point end = seen ? step.forwarded : step.done;
    const EngineClock::time_point begin = std::min(std::max(step.launched, device_free), end);
    add_span(events,
             "forward",
             kForwardTrack,
             begin,
             end,
             {{"step", step.step}, {"end", seen ? "seen" : "with the output"}});
  }
  Json counts = event("C", "requests", kEngineProcess, 0, micros(step.planned));
  counts["args"] = {{"running", step.num_running}, {"waiting", step.num_waiting}};
  events.push_back(std::move(counts));
}

// A mask fill's step is known only from the request's next fill, which consumes the token of that step.
void add_fills(Json& events, const std::vector<MaskFill>& fills) {
  std::unordered_map<uint64_t, Json*> last;  // of each request, the arguments of its newest fill
  std::vector<Json> args(fills.size());
  std::set<int> threads;
  for (size_t i = 0; i < fills.size(); ++i) {
    const MaskFill& fill = fills[i];
    args[i] = {{"request", fill.request}};
    if (fill.step > 0) {
      args[i]["after_step"] = fill.step;
      if (const auto it = last.find(fill.request); it != last.end()) {
        (*it->second)["step"] = fill.step;
      }
    }
    last[fill.request] = &args[i];
  }
  for (size_t i = 0; i < fills.size(); ++i) {
    const MaskFill& fill = fills[i];
    const int thread = kFirstMaskThread + fill.worker;
    if (threads.insert(thread).second) {
      add_name(events, "thread_name", kEngineProcess, thread, "grammar masks");
    }
    add_span(events,
             fill.step > 0 ? "mask" : "first mask",
             {kEngineProcess, thread},
             fill.begun,
             fill.done,
             std::move(args[i]));
  }
}

void add_request(Json& events, const ChoiceRecord& record, EngineClock::time_point end, int lane) {
  const std::pair track{kRequestProcess, lane};
  const Json facts = {{"endpoint", record.endpoint},
                      {"request", record.id},
                      {"choice", record.choice},
                      {"prompt_tokens", record.num_prompt_toks},
                      {"cached_tokens", record.num_cached_toks},
                      {"output_tokens", record.num_output_toks},
                      {"finish_reason", finish_reason_name(record.finish_reason)}};
  add_span(events, record.answer, track, record.arrived, end, facts);
  const bool has_token = record.num_output_toks > 0;
  add_span(events, "to first token", track, record.arrived, has_token ? record.first_token : end);
  if (has_token) {
    add_span(events, "decode", track, record.first_token, std::min(record.last_token, end));
  }
}

// Requests that do not overlap share a lane.
int free_lane(std::vector<EngineClock::time_point>& lanes,
              const ChoiceRecord& record,
              EngineClock::time_point end) {
  size_t lane = 0;
  while (lane < lanes.size() && lanes[lane] > record.arrived) {
    ++lane;
  }
  if (lane == lanes.size()) {
    lanes.push_back(end);
  }
  lanes[lane] = end;
  return static_cast<int>(lane) + 1;
}

}  // namespace

std::string trace_json(const Engine& engine,
                       const ServerWatch& watch,
                       EngineClock::time_point since) {
  const EngineClock::time_point now = EngineClock::now();
  Json events = Json::array();
  add_name(events, "process_name", kEngineProcess, 0, "engine");
  add_name(events, "thread_name", kHostTrack.first, kHostTrack.second, "engine thread");
  add_name(events, "thread_name", kEngineProcess, kFirstFlightThread, "steps in flight");
  add_name(events, "thread_name", kEngineProcess, kFirstFlightThread + 1, "steps in flight");
  add_name(events, "thread_name", kForwardTrack.first, kForwardTrack.second, "forwards");
  add_name(events, "process_name", kRequestProcess, 0, "requests");
  EngineClock::time_point device_free;
  for (const StepTrace& step : engine.steps().since(since)) {
    add_step(events, step, device_free);
    device_free = step.done;
  }
  add_fills(events, engine.mask_fills().since(since));
  std::vector<ChoiceRecord> records = watch.journal.seen_since(since);
  std::sort(records.begin(), records.end(), [](const ChoiceRecord& a, const ChoiceRecord& b) {
    return a.arrived < b.arrived;
  });
  std::vector<EngineClock::time_point> lanes;
  for (const ChoiceRecord& record : records) {
    const EngineClock::time_point end =
        record.finish_reason == FinishReason::kNone ? now : record.ended;
    add_request(events, record, end, free_lane(lanes, record, end));
  }
  Json out;
  out["displayTimeUnit"] = "ms";
  out["traceEvents"] = std::move(events);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace warprow
