// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/request_timeline.h"
#include "server/metrics/server_watch.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kPatience{500};
constexpr std::chrono::seconds kRecent{10};
constexpr size_t kMostEnded = 200;

double percentile(std::vector<double>& sorted, double share) {
  return sorted.empty()
             ? 0.0
             : sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

Json recent_steps(const Engine& engine) {
  const std::vector<StepTrace> steps = engine.steps().since(EngineClock::now() - kRecent);
  std::vector<double> took;
  double wait_ms = 0;
  double busy_ms = 0;
  int64_t num_toks = 0;
  int64_t num_rows = 0;
  EngineClock::time_point previous{};
  for (const StepTrace& step : steps) {
    if (step.num_toks == 0) {  // the step only released rows
      continue;
    }
    // Steps overlap, so a step's time begins where the previous step ended.
    const double ms = ms_between(std::max(step.planned, previous), step.done);
    previous = step.done;
    took.push_back(ms);
    busy_ms += ms;
    wait_ms += ms_between(step.awaited, step.done);
    num_toks += step.num_toks;
    num_rows += step.num_rows;
  }
  std::sort(took.begin(), took.end());
  const double num_steps = std::max<double>(static_cast<double>(took.size()), 1);
  Json out;
  out["seconds"] = kRecent.count();
  out["count"] = took.size();
  out["tokens"] = num_toks;
  out["mean_rows"] = static_cast<double>(num_rows) / num_steps;
  out["mean_ms"] = busy_ms / num_steps;
  out["p50_ms"] = percentile(took, 0.5);
  out["p99_ms"] = percentile(took, 0.99);
  out["busy_share"] = std::min(1.0, busy_ms / (1e3 * static_cast<double>(kRecent.count())));
  out["device_wait_share"] = busy_ms > 0 ? wait_ms / busy_ms : 0.0;
  return out;
}

Json request_json(const ChoiceRecord& record, const RequestStatus* status) {
  const EngineClock::time_point now = EngineClock::now();
  const double decode_s = ms_between(record.first_token, record.last_token) / 1e3;
  Json out;
  out["id"] = record.answer;
  out["choice"] = record.choice;
  out["endpoint"] = record.endpoint;
  out["state"] = status == nullptr   ? "pending"
                 : status->running   ? "running"
                 : status->preempted ? "preempted"
                                     : "waiting";
  out["age_s"] = ms_between(record.arrived, now) / 1e3;
  out["ttft_ms"] =
      record.num_output_toks > 0 ? Json(ms_between(record.arrived, record.first_token)) : Json();
  out["prompt_tokens"] = record.num_prompt_toks;
  out["cached_tokens"] = status != nullptr ? status->num_cached_toks : 0;
  out["computed_tokens"] = status != nullptr ? status->num_computed_toks : 0;
  out["output_tokens"] = record.num_output_toks;
  out["max_tokens"] = record.max_tokens;
  out["tokens_per_s"] =
      record.num_output_toks > 1 && decode_s > 0 ? (record.num_output_toks - 1) / decode_s : 0.0;
  out["kv_blocks"] = status != nullptr ? status->num_blocks : 0;
  out["row"] =
      status != nullptr && status->running ? Json(static_cast<int32_t>(status->row)) : Json();
  return out;
}

Json requests_json(const ServerWatch& watch, const std::vector<RequestStatus>& statuses) {
  std::map<RequestId, const RequestStatus*> by_id;
  for (const RequestStatus& status : statuses) {
    by_id[status.id] = &status;
  }
  std::vector<ChoiceRecord> records = watch.journal.live();
  std::sort(records.begin(), records.end(), [](const ChoiceRecord& a, const ChoiceRecord& b) {
    return std::pair(a.arrived, a.choice) < std::pair(b.arrived, b.choice);
  });
  Json out = Json::array();
  for (const ChoiceRecord& record : records) {
    const auto found = by_id.find(record.id);
    out.push_back(request_json(record, found == by_id.end() ? nullptr : found->second));
  }
  return out;
}

// The newest choices that ended since then, in the order in which they ended.
Json ended_json(const ServerWatch& watch, EngineClock::time_point since) {
  std::vector<ChoiceRecord> records = watch.journal.seen_since(since);
  std::erase_if(records, [](const ChoiceRecord& record) {
    return record.ended == EngineClock::time_point{};
  });
  const size_t first = records.size() - std::min(records.size(), kMostEnded);
  Json out = Json::array();
  for (size_t i = first; i < records.size(); ++i) {
    const ChoiceRecord& record = records[i];
    Json one;
    one["id"] = record.answer;
    one["choice"] = record.choice;
    one["endpoint"] = record.endpoint;
    one["state"] = finish_reason_name(record.finish_reason);
    one["age_s"] = ms_between(record.arrived, EngineClock::now()) / 1e3;
    one["duration_ms"] = ms_between(record.arrived, record.ended);
    one["queue_ms"] = record.queue_ms;
    one["ttft_ms"] =
        record.num_output_toks > 0 ? Json(ms_between(record.arrived, record.first_token)) : Json();
    one["prompt_tokens"] = record.num_prompt_toks;
    one["cached_tokens"] = record.num_cached_toks;
    one["output_tokens"] = record.num_output_toks;
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

std::string engine_trouble(const EngineProgress& progress, double stall_seconds) {
  if (progress.phase == EnginePhase::kStopped) {
    return "the engine has stopped" + (progress.failure.empty() ? "" : ": " + progress.failure);
  }
  // These phases have no time limit: a wake-up, for instance, loads weights.
  const bool may_last = progress.phase == EnginePhase::kIdle ||
                        progress.phase == EnginePhase::kAsleep ||
                        progress.phase == EnginePhase::kCommand;
  if (may_last || progress.seconds < stall_seconds) {
    return "";
  }
  return fmt::format("the engine is stuck: {:.1f} s in phase {} after {} steps",
                     progress.seconds,
                     engine_phase_name(progress.phase),
                     progress.steps);
}

std::string engine_state_json(Engine& engine,
                              const ServerWatch& watch,
                              const ServerNames& names,
                              double stall_seconds,
                              std::optional<EngineClock::time_point> ended) {
  const std::optional<std::vector<RequestStatus>> statuses = engine.list_requests(kPatience);
  const EngineProgress progress = engine.progress();
  const EngineStats stats = engine.stats();
  const ModelFacts& facts = engine.model_facts();
  const std::string trouble = engine_trouble(progress, stall_seconds);
  Json out;
  out["model"] = names.model;
  out["version"] = names.version;
  out["uptime_s"] = ms_between(watch.started, EngineClock::now()) / 1e3;
  out["draining"] = watch.draining.load();
  out["engine"] = {{"phase", engine_phase_name(progress.phase)},
                   {"phase_s", progress.seconds},
                   {"trouble", trouble.empty() ? Json() : Json(trouble)},
                   {"sleeping", engine.is_sleeping()},
                   {"answered", statuses.has_value()},
                   {"steps", stats.steps}};
  out["scheduler"] = {{"running", stats.num_running},
                      {"waiting", stats.num_waiting},
                      {"preemptions", stats.preemptions},
                      {"max_num_seqs", facts.max_num_seqs},
                      {"max_num_batched_tokens", facts.max_num_batched_tokens},
                      {"max_model_len", facts.max_model_len}};
  out["kv"] = {{"blocks", stats.num_blocks - 1},
               {"blocks_used", stats.num_blocks_used},
               {"block_size", stats.block_size}};
  out["tokens"] = {{"prompt", stats.prompt_tokens},
                   {"output", stats.output_tokens},
                   {"prefix_hit", stats.prefix_hit_tokens}};
  if (stats.max_drafts > 0) {
    out["drafts"] = {{"runs", stats.spec_decode_num_drafts},
                     {"tokens", stats.spec_decode_num_draft_tokens},
                     {"accepted", stats.spec_decode_num_accepted_tokens},
                     {"undrafted_rows", stats.spec_decode_num_undrafted}};
  }
  out["recent_steps"] = recent_steps(engine);
  out["connections"] = watch.metrics.connections();
  out["requests"] = requests_json(watch, statuses.value_or(std::vector<RequestStatus>()));
  if (ended) {
    out["ended_requests"] = ended_json(watch, *ended);
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace warprow
