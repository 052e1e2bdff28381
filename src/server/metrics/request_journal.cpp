// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/request_journal.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace warprow {
namespace {

double seconds_between(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Not under the journal's lock: each probe has its own.
void add_records(const std::vector<std::shared_ptr<ChoiceProbe>>& probes,
                 std::vector<ChoiceRecord>& out) {
  for (const std::shared_ptr<ChoiceProbe>& probe : probes) {
    out.push_back(probe->record());
  }
}

}  // namespace

void ChoiceProbe::set_id(RequestId id) {
  const std::scoped_lock lock(mutex_);
  record_.id = id;
}

ChoiceRecord ChoiceProbe::record() const {
  const std::scoped_lock lock(mutex_);
  return record_;
}

void ChoiceProbe::note(const RequestUpdate& update) {
  const EngineClock::time_point now = EngineClock::now();
  {
    const std::scoped_lock lock(mutex_);
    record_.id = update.id;  // a short answer can end before set_id
    if (!update.token_ids.empty()) {
      if (record_.num_output_toks == 0) {
        record_.first_token = now;
        metrics_.time_to_first_token.observe(seconds_between(record_.arrived, now));
      } else {
        metrics_.inter_token_latency.observe(seconds_between(record_.last_token, now));
      }
      record_.last_token = now;
      record_.num_output_toks += static_cast<int32_t>(update.token_ids.size());
    }
    if (update.finish_reason == FinishReason::kNone) {
      return;
    }
    record_.ended = now;
    record_.finish_reason = update.finish_reason;
    record_.num_cached_toks = update.num_cached_tokens;
    record_.queue_ms = update.timings.queue_ms;
    record_.prompt_ms = update.timings.prompt_ms;
    record_.predicted_ms = update.timings.predicted_ms;
    note_end(update);
  }
  journal_.end(this, record());
}

void ChoiceProbe::note_end(const RequestUpdate& update) {
  const RequestTimings& timings = update.timings;
  metrics_.count_end(update.finish_reason);
  metrics_.end_to_end.observe(seconds_between(record_.arrived, record_.ended));
  metrics_.queue_time.observe(timings.queue_ms / 1e3);
  if (record_.num_output_toks > 0) {
    metrics_.prefill_time.observe(timings.prompt_ms / 1e3);
    metrics_.decode_time.observe(timings.predicted_ms / 1e3);
    metrics_.inference_time.observe((timings.prompt_ms + timings.predicted_ms) / 1e3);
  }
  if (record_.num_output_toks > 1) {
    metrics_.time_per_output_token.observe(timings.predicted_ms / 1e3 /
                                           (record_.num_output_toks - 1));
  }
  metrics_.prompt_tokens.observe(record_.num_prompt_toks);
  metrics_.computed_prompt_tokens.observe(record_.num_prompt_toks - record_.num_cached_toks);
  metrics_.count_prompt(record_.num_prompt_toks, record_.num_cached_toks);
  metrics_.generation_tokens.observe(record_.num_output_toks);
  if (ChoiceGroup* group = record_.group.get(); group != nullptr) {
    group->most_output_toks = std::max(group->most_output_toks, record_.num_output_toks);
    if (--group->num_running == 0) {
      metrics_.longest_choice.observe(group->most_output_toks);
    }
  }
}

bool RequestJournal::reserve(int64_t num_choices, int64_t limit) {
  int64_t live = num_live_.load(std::memory_order_relaxed);
  do {
    if (live + num_choices > limit) {
      return false;
    }
  } while (!num_live_.compare_exchange_weak(live, live + num_choices, std::memory_order_relaxed));
  return true;
}

std::shared_ptr<ChoiceProbe> RequestJournal::begin(ChoiceRecord record) {
  auto probe = std::make_shared<ChoiceProbe>(*this, metrics_, std::move(record));
  const std::scoped_lock lock(mutex_);
  live_.emplace(probe.get(), probe);
  return probe;
}

void RequestJournal::end(const ChoiceProbe* probe, ChoiceRecord record) {
  if (on_end_) {
    on_end_(record);
  }
  const std::scoped_lock lock(mutex_);
  live_.erase(probe);
  ended_.push_back(std::move(record));
  if (ended_.size() > kMaxEnded) {
    ended_.pop_front();
  }
  num_live_.fetch_sub(1, std::memory_order_relaxed);
}

RequestJournal::Probes RequestJournal::live_probes() const {
  Probes probes;
  probes.reserve(live_.size());
  for (const auto& [key, probe] : live_) {
    probes.push_back(probe);
  }
  return probes;
}

std::vector<ChoiceRecord> RequestJournal::live() const {
  Probes probes;
  {
    const std::scoped_lock lock(mutex_);
    probes = live_probes();
  }
  std::vector<ChoiceRecord> out;
  add_records(probes, out);
  return out;
}

std::vector<ChoiceRecord> RequestJournal::find(std::string_view id, std::string_view owner) const {
  std::vector<ChoiceRecord> found = seen_since(EngineClock::time_point{});
  std::erase_if(found, [id, owner](const ChoiceRecord& record) {
    const std::string_view answer = record.answer;
    const size_t dash = answer.find('-');
    const bool is_it = answer == id || (dash != answer.npos && answer.substr(dash + 1) == id);
    return !is_it || record.owner != owner;
  });
  if (!found.empty()) {
    const EngineClock::time_point newest =
        std::ranges::max(found, {}, &ChoiceRecord::arrived).arrived;
    std::erase_if(found, [newest](const ChoiceRecord& record) { return record.arrived != newest; });
  }
  std::ranges::sort(found, {}, &ChoiceRecord::choice);
  return found;
}

std::vector<ChoiceRecord> RequestJournal::seen_since(EngineClock::time_point when) const {
  std::vector<ChoiceRecord> out;
  Probes probes;
  {
    const std::scoped_lock lock(mutex_);
    std::copy_if(ended_.begin(), ended_.end(), std::back_inserter(out), [&](const auto& record) {
      return record.ended >= when;
    });
    probes = live_probes();
  }
  add_records(probes, out);
  return out;
}

}  // namespace warprow
