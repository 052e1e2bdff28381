// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/simulation.h"

#include "base/check.h"
#include "engine/prefill_budget.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace warprow {
namespace {

constexpr TokenId kIdMask = 0x3fffffff;

// A good mixture of two numbers (splitmix64's finaliser).
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15U + b;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// The prompt's tokens. Those of a key follow from it and the keys before it, the rest from the request's number.
std::vector<TokenId> make_prompt(const ArrivalTrace& trace,
                                 const TraceRequest& request,
                                 size_t index) {
  const auto len = static_cast<size_t>(request.input_tokens);
  if (request.first_token >= 0) {
    const auto first = trace.tokens.begin() + request.first_token;
    return {first, first + request.input_tokens};
  }
  std::vector<TokenId> tokens(len);
  const auto unit = static_cast<size_t>(request.prefix_unit);
  const size_t num_shared = std::min(len, unit * static_cast<size_t>(request.num_keys));
  uint64_t content = 0;
  for (size_t i = 0; i < len; ++i) {
    if (i < num_shared && i % unit == 0) {
      content = mix(content, trace.keys[static_cast<size_t>(request.first_key) + i / unit]);
    } else if (i == num_shared) {
      content = mix(~content, index);
    }
    tokens[i] = static_cast<TokenId>(mix(content, i)) & kIdMask;
  }
  return tokens;
}

// A row that yields a token.
struct SamplingRow {
  RowId row = kNoRow;
  uint32_t generation = 0;
};

// A step on the device.
struct FlyingStep {
  int64_t step = 0;
  double end_s = 0;
  std::vector<SamplingRow> rows;
};

class Simulation {
 public:
  Simulation(const SchedulerConfig& config,
             const CostTable& costs,
             const ArrivalTrace& trace,
             const SimulationOptions& options)
      : costs_(costs),
        trace_(trace),
        options_(options),
        scheduler_(config),
        prefill_budget_(options.target_step_us, config.max_concurrent_steps) {
    scheduler_.reserve(step_);
    rows_.resize(static_cast<size_t>(config.max_num_seqs));
    result_.records.requests.resize(trace.requests.size());
    last_token_s_.resize(trace.requests.size());
  }

  SimulationResult run() {
    while (tick()) {
    }
    result_.scheduler = scheduler_.stats();
    result_.mean_rows = num_steps_ > 0 ? num_rows_ / static_cast<double>(num_steps_) : 0;
    return std::move(result_);
  }

 private:
  // What a row's request is, and how much of its prompt a step computes.
  struct Row {
    int32_t prefill_len = 0;
    uint32_t generation = 0;
  };

  // False at the end.
  bool tick() {
    take_arrivals();
    if (submit_step()) {
      return true;
    }
    if (!flying_.empty()) {
      take_step();
      return true;
    }
    WR_CHECK(!scheduler_.has_work(), "requests wait, none can run and nothing is in flight");
    if (next_ == trace_.requests.size()) {
      return false;
    }
    now_s_ = std::max(now_s_, due_s());
    return true;
  }

  // When the client sends the next request of the trace: not while max_concurrency requests are under way.
  [[nodiscard]] double sent_s() const {
    return std::max(trace_.requests[next_].arrival_s, full_until_s_);
  }
  // When that request reaches the scheduler.
  [[nodiscard]] double due_s() const { return sent_s() + way_s(); }
  [[nodiscard]] double way_s() const { return 1e-6 * costs_.request_us; }

  void take_arrivals() {
    const auto may_send = [this] {
      return options_.max_concurrency == 0 || num_under_way_ < options_.max_concurrency;
    };
    while (next_ < trace_.requests.size() && due_s() <= now_s_ && may_send()) {
      send(next_);
    }
  }

  void send(size_t index) {
    const TraceRequest& from = trace_.requests[index];
    ServeRecord& record = result_.records.requests[index];
    record.start_s = sent_s();
    ++next_;
    if (const auto fits = scheduler_.check(from.input_tokens, from.output_tokens); !fits) {
      record.error = fits.error().message;
      options_.on_progress(++num_done_, num_output_toks_);
      return;
    }
    Request request;
    request.id = index;
    request.max_tokens = from.output_tokens;
    request.priority = from.priority;
    request.prompt = make_prompt(trace_, from, index);
    const Result<void> added = scheduler_.add_request(request);
    WR_CHECK(added.has_value(), "{}", added.error().message);
    record.num_input_tokens = from.input_tokens;
    result_.num_input_toks += from.input_tokens;
    ++num_under_way_;
    result_.records.max_concurrent = std::max(result_.records.max_concurrent, num_under_way_);
  }

  bool submit_step() {
    if (!scheduler_.schedule(step_, prefill_budget_.max_toks())) {
      return false;
    }
    for (const NewRow& row : step_.new_rows) {
      rows_[static_cast<size_t>(index_of(row.row))] = {row.prefill_len, row.generation};
    }
    FlyingStep flying;
    flying.step = step_.step;
    StepLoad load;
    load.num_toks = step_.total_num_tokens;
    for (const ScheduledRow& row : step_.scheduled) {
      add_row(load, row, rows_[static_cast<size_t>(index_of(row.row))].prefill_len);
      if (row.num_logits > 0) {
        flying.rows.push_back({row.row, rows_[static_cast<size_t>(index_of(row.row))].generation});
      }
    }
    prefill_budget_.launch(step_, 1e6 * now_s_);
    const double begin_s = std::max(now_s_ + 1e-6 * costs_.host_us, free_s_);
    const double cost_s = load.num_toks > 0 ? 1e-6 * costs_.step_us(load) : 0;
    flying.end_s = free_s_ = begin_s + cost_s;
    result_.busy_s += cost_s;
    num_steps_ += load.num_toks > 0 ? 1 : 0;
    num_rows_ += static_cast<double>(step_.scheduled.size());
    const SchedulerStats stats = scheduler_.stats();
    result_.most_blocks_used = std::max(result_.most_blocks_used, stats.num_kv_blocks_used);
    result_.most_waiting = std::max(result_.most_waiting, stats.num_waiting);
    flying_.push_back(std::move(flying));
    return true;
  }

  // The oldest step's output: one token for each of its rows, unless the row's request ended.
  void take_step() {
    const FlyingStep& done = flying_.front();
    now_s_ = std::max(now_s_, done.end_s);
    prefill_budget_.finish(1e6 * now_s_);
    output_.clear();
    output_.step = done.step;
    for (const SamplingRow& row : done.rows) {
      RowOutput& out = output_.rows.emplace_back();
      out.row = row.row;
      out.generation = row.generation;
      out.kind = RowResult::kTokens;
      out.tokens = {static_cast<int32_t>(output_.token_ids.size()), 1};
      output_.token_ids.push_back(static_cast<TokenId>(mix(++num_drawn_, 0)) & kIdMask);
    }
    scheduler_.update_from_output(output_, deltas_);
    flying_.pop_front();
    for (const RequestDelta& delta : deltas_) {
      take_token(delta);
    }
  }

  void take_token(const RequestDelta& delta) {
    const auto index = static_cast<size_t>(delta.id);
    ServeRecord& record = result_.records.requests[index];
    const double seen_s = now_s_ + way_s() - record.start_s;
    if (record.num_output_tokens++ == 0) {
      record.ttft_s = seen_s;
    } else {
      record.itls_s.push_back(seen_s - last_token_s_[index]);
    }
    last_token_s_[index] = seen_s;
    if (delta.reason != FinishReason::kNone) {
      record.latency_s = seen_s;
      end_request(record.num_output_tokens);
    }
  }

  void end_request(int64_t num_toks) {
    result_.records.duration_s = now_s_ + way_s();
    if (num_under_way_-- == options_.max_concurrency) {
      full_until_s_ = result_.records.duration_s;
    }
    num_output_toks_ += num_toks;
    options_.on_progress(++num_done_, num_output_toks_);
  }

  const CostTable& costs_;
  const ArrivalTrace& trace_;
  const SimulationOptions& options_;
  Scheduler scheduler_;
  PrefillBudget prefill_budget_;
  SimulationResult result_;
  double now_s_ = 0;
  size_t next_ = 0;          // request of the trace
  double full_until_s_ = 0;  // when the client last learned that it may send one more
  double free_s_ = 0;        // when the device has done all submitted steps
  std::deque<FlyingStep> flying_;
  std::vector<Row> rows_;  // [max_num_seqs]
  std::vector<double> last_token_s_;
  int64_t num_under_way_ = 0;
  int64_t num_done_ = 0;
  int64_t num_output_toks_ = 0;
  int64_t num_steps_ = 0;
  double num_rows_ = 0;
  uint64_t num_drawn_ = 0;

  // Reused by every step.
  SchedulerOutput step_;
  ModelRunnerOutput output_;
  std::vector<RequestDelta> deltas_;
};

}  // namespace

SimulationResult simulate(const SchedulerConfig& config,
                          const CostTable& costs,
                          const ArrivalTrace& trace,
                          const SimulationOptions& options) {
  return Simulation(config, costs, trace, options).run();
}

}  // namespace warprow
