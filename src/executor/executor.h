// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/wake_up.h"
#include "config/engine_config.h"
#include "config/pooling_facts.h"
#include "executor/rank_answers.h"
#include "executor/rank_operations.h"
#include "kv/kv_spec.h"
#include "kv/token_pages.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// What the engine needs of the loaded model and its plan; the same on every rank.
struct ModelFacts {
  std::string architecture;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  KvCacheSpec kv;
  TokenPages token_pages;
  int32_t target_itl_ms = 0;                 // as in ResolvedConfig
  int32_t long_prefill_token_threshold = 0;  // as in SchedulerConfig
  int32_t long_prompt_len = 0;               // as in SchedulerConfig
  int64_t max_prefill_pairs = 0;             // as in SchedulerConfig
  int32_t min_deep_chunk = 1;                // as in SchedulerConfig
  bool has_hidden_states = false;            // requests may ask for them
  int32_t max_drafts = 0;  // drafts that rows propose for themselves; SchedulerConfig's num_drafts
  bool whole_drafts = false;  // as in SchedulerConfig, as the next four
  int32_t draft_lookahead = 0;
  double draft_cost = 0;
  double draft_knee = 0;
  double draft_forward = 0;
  PoolingFacts pooling;             // of a pooling model
  int32_t prompt_embeds_width = 0;  // of the vectors that prompts may have; 0: none may
  bool copies_blocks = false;       // SchedulerOutput::block_copies are read
  int32_t max_logprobs = 0;         // likeliest tokens that a row can report; 0: kMaxLogprobIds
  int32_t max_loras = 0;            // adapters that running requests may have at once; 0: none
  int32_t max_cpu_loras = 0;        // that may be loaded
};

// Counters of the execution layer since start.
struct ExecutorStats {
  int64_t steps = 0;
  int64_t max_steps_in_flight = 0;
  int64_t row_state_bytes = 0;   // uploaded diffs of row state, summed
  int64_t step_allocations = 0;  // heap allocations inside steps; 0 under sanitizers
  int64_t workspace_high_water = 0;
  int64_t workspace_planned = 0;
  int64_t output_wait_ns = 0;  // time in take_output until the device was done, summed
  int64_t driver_calls = 0;    // 0 without a driver
  // Parts of steps that could use a graph, by how they ran (a step has two: the forward, and sampling); see
  // GraphStats.
  int64_t graphs_full = 0;
  int64_t graphs_piecewise = 0;
  int64_t graphs_eager = 0;
  int64_t graph_captures = 0;
  int64_t graph_evictions = 0;
  int64_t graph_bytes = 0;
  int64_t padded_toks = 0;  // tokens of padding that forwards computed
};

// What a rank in another process is doing, as last heard.
struct RankStatus {
  int32_t rank = 0;
  std::string phase;        // rank_phase_name (executor/mp/control_block.h)
  int64_t step = 0;         // the last one that it submitted to its device
  int64_t num_retired = 0;  // steps whose output it has taken
};

// How work is spread over devices. Takes steps in order and yields their outputs in the same order.
//
// One rank has the results, the output rank: the first of the last stage. take_output waits for it alone. The other
// ranks have the same steps outstanding, and their outputs are not used. Each retires its own on its own thread
// once their event is reached (Runner::take_output, result dropped), before it runs a step that needs their ring
// entries.
//
// Owns: its workers.
// Thread: the engine's, which calls enter_thread first.
// Invariant: every execute_model is followed by exactly one sample_tokens before the next
// execute_model; at most max_concurrent_batches outputs are outstanding.
class Executor {
 public:
  virtual ~Executor() = default;

  [[nodiscard]] virtual const ModelFacts& model_facts() const = 0;
  [[nodiscard]] virtual int32_t max_concurrent_batches() const = 0;

  // Called once by the submitting thread, before its first step.
  virtual void enter_thread() {}

  // Submits the forward of a step on every rank; returns without waiting for it.
  virtual void execute_model(const SchedulerOutput& step) = 0;
  // Submits sampling for the step just executed. grammar may be null: no row has a mask.
  virtual void sample_tokens(const GrammarOutput* grammar) = 0;
  // Between the two phases of a step with grammar rows: whether the forward is done on every rank, so that the
  // device is waiting for sample_tokens.
  [[nodiscard]] virtual bool forward_done() const { return true; }
  // Steps submitted whose output was not taken.
  [[nodiscard]] virtual int32_t num_outstanding() const = 0;
  // Whether the oldest outstanding output can be taken without blocking.
  [[nodiscard]] virtual bool output_ready() const = 0;
  // Takes the oldest outstanding output; blocks until the output rank has it. `output` keeps its
  // capacity.
  virtual void take_output(ModelRunnerOutput& output) = 0;
  // From now on notifies `wake_up` whenever output_ready() or idle_step() becomes true; null stops this. Returns
  // whether it notifies outputs. An executor with workers in other processes does, from the thread that reads their
  // answers. One whose worker is this thread does not: the engine waits in take_output, where the device wakes the
  // thread soonest.
  virtual bool set_wake_up(WakeUp* /*wake_up*/) { return false; }
  // Called while the engine is idle: whether its ranks must run a step without tokens, because ranks of other
  // engines wait for them in a collective; and the shape of that step. Throws if a rank has failed.
  [[nodiscard]] virtual std::optional<DataParallelShape> idle_step() { return std::nullopt; }

  // Runs a named operation on these ranks, each on the thread of its rank, after the steps submitted before;
  // returns without waiting for ranks on other threads. With one rank in this process it has run when this returns.
  // A check fails for an unknown name or rank. The text form of call().
  virtual RankReplies collective_rpc(std::string_view operation,
                                     const std::string& argument,
                                     RankSet ranks) = 0;
  // executor.call(SleepRanks{1}).get()
  template <typename Operation>
  RankAnswers<Operation> call(const Operation& operation, RankSet ranks = RankSet::all()) {
    return RankAnswers<Operation>(collective_rpc(Operation::kName, operation.encode(), ranks));
  }

  [[nodiscard]] virtual ExecutorStats stats() const = 0;
  // The status of each rank in another process, by rank; empty if there are none. Thread: any.
  [[nodiscard]] virtual std::vector<RankStatus> ranks() const { return {}; }
};

}  // namespace warprow
