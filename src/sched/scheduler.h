// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/speculation.h"
#include "kv/kv_math.h"
#include "kv/token_pages.h"
#include "sched/adapter_list.h"
#include "sched/kv_cache_manager.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/row_allocator.h"
#include "sched/wait_reason.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <array>
#include <cstdint>
#include <vector>

namespace warprow {

struct SchedulerConfig {
  enum class Policy : uint8_t { kFcfs, kPriority };

  int32_t max_num_seqs = 64;             // rows
  int32_t max_num_batched_tokens = 512;  // the token budget of a step
  int32_t max_model_len = 2048;          // prompt and outputs together
  bool enable_prefix_caching = true;
  bool copies_blocks = false;  // the workers read SchedulerOutput::block_copies
  bool enable_chunked_prefill = true;
  Policy policy = Policy::kFcfs;
  int32_t max_concurrent_steps = 1;  // num_stages, and one more when async
  int32_t num_stages = 1;            // of a pipeline: steps that run at once, each of other rows
  int32_t num_drafts =
      0;  // draft tokens that a step verifies for each decoding row, at most kMaxDrafts
  // Rows have all of their drafts in a step, or are not in it: what a row draws depends on which tokens were drafts.
  bool whole_drafts = false;
  // Positions behind a row's tokens of a step that a proposer writes keys and values of: they need blocks too.
  int32_t draft_lookahead = 0;
  // What one more token costs a step, in units of a step with one: rows draft fewer tokens, or none, where that does
  // not pay (sched/draft_length.h). 0: always num_drafts.
  double draft_cost = 0;
  // On a GPU instead: the tokens of a step above which it takes longer. All rows of a step draft equally many. 0: none.
  double draft_knee = 0;
  // With draft_knee and draft_lookahead: the time of a drafting model's forward, in units of a step with few tokens.
  double draft_forward = 0;
  // Under chunked prefill: the most tokens of a step for a row with more prompt tokens left, in a step in which a
  // request with fewer waits or runs; 0: no limit. Prompts of up to long_prompt_len tokens are exempt.
  int32_t long_prefill_token_threshold = 0;
  int32_t long_prompt_len = 0;
  // Under chunked prefill: n prompt tokens after c computed ones cost about n * c query-key pairs of attention, so a
  // step would take longer and longer the deeper a prompt is. A row's prefill has at most so many pairs in a step,
  // but always min_deep_chunk tokens; 0: no limit. Of long prefills only one in a step has its chunk cut by this.
  int64_t max_prefill_pairs = 0;
  int32_t min_deep_chunk = 1;
  int32_t max_loras = 0;  // adapters that running requests may have at once
  // Reuse a block only after the last step that may touch it is complete: see BlockPool.
  bool fence_freed_blocks = false;
  KvCacheSpec kv;
  TokenPages token_pages;  // no pages: as many as all rows can use

  // Positions past its longest length that a row's steps may touch.
  [[nodiscard]] int32_t max_overhang() const {
    return draft_overhang(max_concurrent_steps, num_drafts, draft_lookahead);
  }
  [[nodiscard]] int32_t max_row_len() const { return max_model_len + max_overhang(); }
};

// A step may always compute this many prompt tokens, and this many for each decoding row, so that prompts make progress.
// Lower limits cost more in extra steps than they save. docs/experiments/cpu_scheduling.md has the delay of running
// streams that the second limit causes.
inline constexpr int32_t kMinMixedPrefill = 16;
inline constexpr int32_t kMinPrefillPerDecode = 2;

// Requests with adapters that may pass one that waits for an adapter's place.
inline constexpr int32_t kMaxPassed = 256;

// Counters since construction, and the state now.
struct SchedulerStats {
  int64_t num_steps = 0;                  // scheduled, those that only release rows included
  int64_t num_mixed_steps = 0;            // prefill and decode rows in one step
  int64_t num_partial_prefill_steps = 0;  // with a prefill chunk that does not reach its end
  int64_t num_preemptions = 0;
  int64_t num_prefix_hit_tokens = 0;
  int64_t num_scheduled_tokens = 0;
  int64_t num_drafts = 0;           // runs of drafts verified by the steps whose outputs were taken
  int64_t num_drafted_tokens = 0;   // in these runs
  int64_t num_accepted_tokens = 0;  // of the drafted ones
  std::array<int64_t, kMaxDrafts> num_accepted_at{};  // by place in the run
  int64_t num_undrafted =
      0;  // decoding rows of steps that got no drafts because they would not pay
  int32_t max_steps_in_flight = 0;
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  int32_t num_kv_blocks = 0;                   // without the null block
  int32_t num_kv_blocks_used = 0;              // held by requests
  WaitReason wait_reason = WaitReason::kNone;  // in the last step that schedule() planned
};

// Decides which requests advance in each step, by how many tokens, in which rows and blocks. Continuous batching:
// one token budget, no separate prefill and decode phases; each request closes the gap between computed and known
// tokens. Running requests come first, in order of admission, then waiting ones by (priority,) arrival. When blocks
// run out, the last running request in that order is preempted: it releases everything and waits to be admitted
// again with prompt + outputs as its prefill.
//
// Use: schedule() up to max_concurrent_steps times ahead, then update_from_output() once for each step, in order. A
// request that certainly ends with the outputs in flight is not scheduled again. With stages the decoding rows are
// divided between the steps that run at once: a step takes its part of them, and a row whose output is in flight comes
// again that many steps later. Nothing is planned ahead behind a step with a chunk of max_prefill_pairs: that step is
// long, so planning ahead would only delay a request that arrives now. With drafts a step is planned and given blocks
// as if all drafts before it were accepted. What cannot be undone (releasing blocks that a window has passed, hashing
// full blocks) follows the lower bounds.
//
// Owns: requests, rows, blocks.
// Thread: one. No clock, no device; after warm-up schedule() and update_from_output() allocate
// nothing unless a caller's vector must grow (reserve() sizes it).
// Invariant: see check_invariants().
class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  [[nodiscard]] const SchedulerConfig& config() const { return config_; }

  // Whether a request of this size can ever run; if not, kInvalidArgument names the limit. Reads only the
  // configuration, so any thread may call it.
  [[nodiscard]] Result<void> check(int64_t prompt_len, int64_t max_tokens) const;

  // Queues a request, or refuses it as check() does. No live request may have its id.
  [[nodiscard]] Result<void> add_request(const Request& request);

  // Ends a request in any state: the client left, or a stop string was found outside. Its row is released in the
  // next step and its outputs in flight are dropped. Returns false if no such request lives. Makes no delta in
  // either case.
  bool abort_request(uint64_t id);
  bool finish_request(uint64_t id) { return abort_request(id); }

  // The adapters that requests may name. While max_loras other adapters have rows, a waiting request does not block those
  // behind it. At most kMaxPassed requests with adapters pass it, so that it does not wait for ever.
  [[nodiscard]] AdapterList& adapters() { return adapters_; }
  [[nodiscard]] const AdapterList& adapters() const { return adapters_; }

  // Ends every request as abort_request() does, and returns their ids.
  std::vector<uint64_t> abort_all();
  // Forgets every cached prefix, because the cache's memory is lost. No request may be running, and no step in
  // flight.
  void reset_prefix_cache();
  // The same, and running requests wait to be admitted again, because what was computed is no longer what the model
  // would compute. Their rows are released in the next step. No step may be in flight.
  void forget_computed();

  // Whether requests are left to schedule or released rows to report to the workers; steps in flight do not count.
  [[nodiscard]] bool has_work() const {
    return running_.size() + waiting_.size() > 0 || !finished_rows_.empty();
  }
  [[nodiscard]] int32_t num_in_flight() const { return num_in_flight_; }

  // Plans the next step into `out`. Returns false and makes no step if max_concurrent_steps are in flight, or if no
  // request can advance and no row is to be released. A step without tokens counts as a step: its (empty) output is
  // expected.
  // max_mixed_prefill: prompt tokens of the step, if any row decodes, so that a new request's prompt does not delay
  // running streams for long; raised to kMinMixedPrefill, and to kMinPrefillPerDecode for each such row; 0: no limit. It
  // counts under chunked prefill. `out` has the limit that counted, which plans the same step if it is passed again. It is
  // the caller's, because it follows from times (engine/prefill_budget.h).
  bool schedule(SchedulerOutput& out, int32_t max_mixed_prefill = 0);

  // Applies the output of the oldest step in flight. `deltas` is replaced by one entry for each request that got a
  // token or failed, in the order of the output's rows. Tokens of requests that have ended since are dropped.
  void update_from_output(const ModelRunnerOutput& out, std::vector<RequestDelta>& deltas);

  // For a step's grammar rows, after schedule() and before its next call.
  // The grammar of the request that the last planned step runs in `row`; -1 if that request has ended since.
  [[nodiscard]] int32_t grammar_of(RowId row) const;
  // The row yields no token in the last planned step, which computes all of its tokens but those of its logits. Its
  // request keeps row and blocks and is not scheduled until resume(). Preemption also resumes it.
  void withhold(RowId row);
  // Whether a row may compute a token again: a layer's state would take it in twice.
  [[nodiscard]] bool may_withhold() const { return !kv_.has_states(); }
  // No-op if the request has ended or is not held.
  void resume(uint64_t id);

  // The request that has the row, which must have one.
  [[nodiscard]] uint64_t request_of(RowId row) const {
    return requests_[row_owner_[static_cast<size_t>(index_of(row))]].id;
  }

  // Reserves in `out` the capacity that any usual step needs.
  void reserve(SchedulerOutput& out) const;

  [[nodiscard]] SchedulerStats stats() const;
  // Running requests in order of admission, then waiting ones in their order. Allocates.
  [[nodiscard]] std::vector<RequestStatus> list_requests() const;

  // For tests. Aborts unless every block's references equal the tables' entries for it, or else it is free; only
  // full hashed blocks are shared; and rows, lists and counts agree.
  void check_invariants() const;
  [[nodiscard]] const BlockPool& pool() const { return kv_.pool(); }
  [[nodiscard]] const PagePool& pages() const { return kv_.pages(); }
  // The request's block table; empty if it is not running.
  [[nodiscard]] std::vector<BlockId> block_table(uint64_t id, int32_t group) const;

 private:
  // What a step in flight computes for one row. `index` names the request only if its arrival number is still the
  // same.
  struct PlannedRow {
    int64_t step = 0;
    int32_t index = -1;
    uint32_t generation = 0;
    uint64_t arrival = 0;
    int32_t num_logits = 0;  // 0: no result is expected
  };
  struct StepRecord {
    int32_t num_sampling = 0;
    std::vector<PlannedRow> rows;  // [max_num_seqs]
  };

  [[nodiscard]] bool is_between_turns(const LiveRequest& request) const;
  [[nodiscard]] int32_t mixed_prefill_limit(int32_t max_mixed_prefill) const;
  [[nodiscard]] int32_t max_long_chunk() const;
  [[nodiscard]] bool has_short_request(bool prompts_only) const;
  [[nodiscard]] bool is_long_prefill(int32_t num_known, int32_t num_computed) const;
  [[nodiscard]] bool was_refused(const LiveRequest& request) const;
  [[nodiscard]] int32_t limit_deep_chunk(int32_t chunk, int32_t num_computed, bool is_long);
  void schedule_running(SchedulerOutput& out);
  int32_t advance_running(int32_t index, SchedulerOutput& out);
  [[nodiscard]] int32_t drafts_of_step();
  void decide_drafts();
  void decide_proposals(const SchedulerOutput& out);
  [[nodiscard]] bool tries_drafts(const SchedulerOutput& out) const;
  [[nodiscard]] int32_t num_drafts_of(LiveRequest& request);
  // The waiting request that is next to be admitted, or -1.
  [[nodiscard]] int32_t next_waiting();
  bool admit_next(SchedulerOutput& out);
  [[nodiscard]] WaitReason why_waiting(const SchedulerOutput& out) const;
  void enter_row(int32_t index, int32_t num_hit, SchedulerOutput& out);
  void commit_step(SchedulerOutput& out);

  [[nodiscard]] int32_t pick_victim() const;
  void preempt(int32_t index, SchedulerOutput& out);
  void leave_row(int32_t index);
  void unschedule(RowId row, SchedulerOutput& out);
  void enqueue(int32_t index);
  void end(int32_t index);

  void count_drafts(int32_t num_drafted, int32_t num_accepted);
  void take_result(const PlannedRow& planned,
                   const RowOutput& row,
                   const ModelRunnerOutput& out,
                   LiveRequest& r,
                   RequestDelta& delta);
  [[nodiscard]] static FinishReason finish_reason(const LiveRequest& request,
                                                  TokenId token,
                                                  TokenId& stop_token_id);
  [[nodiscard]] LiveRequest& owner(RowId row) {
    return requests_[row_owner_[static_cast<size_t>(index_of(row))]];
  }
  [[nodiscard]] int64_t last_step() const { return next_step_ - 1; }
  [[nodiscard]] const PlannedRow& last_plan(RowId row) const;

  SchedulerConfig config_;
  KvCacheManager kv_;
  RowAllocator rows_;
  RequestTable requests_;
  AdapterList adapters_;
  RequestList running_;  // in order of admission
  RequestList waiting_;  // most urgent first
  // [max_num_seqs] Index of the request in the row; stale for a free row.
  std::vector<int32_t> row_owner_;
  std::vector<RowId> finished_rows_;  // released since the last step
  std::vector<StepRecord> records_;   // [max_concurrent_steps], by step modulo
  uint64_t next_arrival_ = 1;
  int64_t next_step_ = 1;
  int32_t num_in_flight_ = 0;
  int64_t taken_step_ = 0;            // the last one whose output was taken
  int32_t num_turns_ = 1;             // steps that the decoding rows are divided between
  int32_t decode_budget_ = 0;         // decoding rows left in the step being planned
  int32_t budget_ = 0;                // tokens left in the step being planned
  int32_t prefill_budget_ = 0;        // of these, tokens that may be prefill
  int32_t long_chunk_ = 0;            // the most tokens of a long prefill in this step
  bool has_deep_chunk_ = false;       // a chunk of this step reaches max_prefill_pairs
  bool has_deep_long_chunk_ = false;  // and is of a long prefill
  int32_t step_drafts_ = 0;           // of every decoding row, with draft_knee
  int32_t wanted_drafts_ = 0;         // the same if the step before had proposed as many
  int32_t next_proposals_ = -1;       // SchedulerOutput::num_proposals of the step that is planned
  int32_t proposals_ = -1;            // the same of the step before
  int64_t num_plain_steps_ = 0;       // since the last in which drafts paid
  std::vector<double> acceptance_;    // of the rows of a step, with draft_knee
  // The waiting request that was last refused for lack of blocks or pages, and num_changes() then: until that count
  // grows, a retry would give the same result.
  uint64_t refused_arrival_ = 0;
  uint64_t passed_arrival_ = 0;  // the first waiting request, whose adapter has no place
  int32_t num_passed_ = 0;       // requests with adapters that were admitted before it since
  int64_t refused_at_ = 0;
  WaitReason refusal_ = WaitReason::kNone;  // by admit_next in the step being planned
  SchedulerStats stats_;
};

}  // namespace warprow
