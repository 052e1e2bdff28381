// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_record.h"

namespace warprow {

EngineRecord::EngineRecord(const Scheduler& scheduler,
                           const Executor& executor,
                           const StructuredRequests& structured)
    : scheduler_(scheduler), executor_(executor), structured_(structured) {
  const ModelFacts& facts = executor.model_facts();
  published_.block_size = facts.kv.groups.front().block_size;
  for (const KvGroupSpec& group : facts.kv.groups) {
    if (group.kind != KvKind::kState) {
      published_.kv_dtype = group.dtype;
    }
  }
  published_.num_blocks = facts.kv.num_blocks;
  published_.max_drafts = facts.max_drafts;
  publish();
}

void EngineRecord::plan() {
  planned_ = EngineClock::now();
  enter(EnginePhase::kScheduling);
}

EngineClock::time_point EngineRecord::launch(const SchedulerOutput& step) {
  launched_ = EngineClock::now();
  num_steps_ += step.total_num_tokens > 0 ? 1 : 0;  // not those that only release rows
  enter(EnginePhase::kLaunching);
  return launched_;
}

void EngineRecord::hand_over(const SchedulerOutput& step) {
  StepTrace trace;
  trace.step = step.step;
  trace.planned = planned_;
  trace.launched = launched_;
  trace.handed = EngineClock::now();
  if (!step.grammar_rows.empty()) {
    trace.forwarded = structured_.forward_done_at();
  }
  trace.num_rows = static_cast<int32_t>(step.scheduled.size());
  trace.num_toks = step.total_num_tokens;
  for (const ScheduledRow& row : step.scheduled) {
    trace.num_prefill_toks += row.num_tokens > 1 + row.num_drafts ? row.num_tokens : 0;
  }
  const SchedulerStats scheduler = scheduler_.stats();
  trace.num_running = scheduler.num_running;
  trace.num_waiting = scheduler.num_waiting;
  trace.wait_reason = scheduler.wait_reason;
  steps_.begin(trace);
}

void EngineRecord::await_output() {
  awaited_ = EngineClock::now();
  enter(EnginePhase::kDevice);
}

EngineClock::time_point EngineRecord::deliver(const StepStats& stats) {
  enter(EnginePhase::kDelivering);
  progress_.count_step();
  const EngineClock::time_point done = EngineClock::now();
  steps_.end(awaited_, done, stats);
  return done;
}

void EngineRecord::publish() {
  const SchedulerStats scheduler = scheduler_.stats();
  const ExecutorStats executor = executor_.stats();
  const GrammarProgress::Stats grammars = structured_.stats();
  const std::scoped_lock lock(mutex_);
  EngineStats& out = published_;
  out.steps = num_steps_;
  out.prompt_tokens = prompt_toks_;
  out.output_tokens = output_toks_;
  out.mixed_steps = scheduler.num_mixed_steps;
  out.partial_prefill_steps = scheduler.num_partial_prefill_steps;
  out.preemptions = scheduler.num_preemptions;
  out.prefix_hit_tokens = scheduler.num_prefix_hit_tokens;
  const std::span<const AdapterUse> adapters = scheduler_.adapters().uses();
  out.max_loras = scheduler_.adapters().max_loras();
  out.adapter_uses.assign(adapters.begin(), adapters.end());
  out.num_running = scheduler.num_running;
  out.num_waiting = scheduler.num_waiting;
  out.num_blocks_used = scheduler.num_kv_blocks_used;
  out.max_steps_in_flight = executor.max_steps_in_flight;
  out.step_allocations = executor.step_allocations;
  out.row_state_bytes = executor.row_state_bytes;
  out.graphs_full = executor.graphs_full;
  out.graphs_piecewise = executor.graphs_piecewise;
  out.graphs_eager = executor.graphs_eager;
  out.graph_captures = executor.graph_captures;
  out.graph_evictions = executor.graph_evictions;
  out.graph_bytes = executor.graph_bytes;
  out.padded_toks = executor.padded_toks;
  out.grammar_masks = grammars.num_masks;
  out.grammar_mask_us = grammars.busy_us;
  out.withheld_rows = structured_.num_withheld();
  out.spec_decode_num_drafts = scheduler.num_drafts;
  out.spec_decode_num_draft_tokens = scheduler.num_drafted_tokens;
  out.spec_decode_num_accepted_tokens = scheduler.num_accepted_tokens;
  out.spec_decode_num_accepted_tokens_per_pos = scheduler.num_accepted_at;
  out.spec_decode_num_undrafted = scheduler.num_undrafted;
}

EngineStats EngineRecord::stats() const {
  const std::scoped_lock lock(mutex_);
  return published_;
}

}  // namespace warprow
