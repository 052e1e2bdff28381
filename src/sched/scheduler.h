// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "kv/kv_math.h"
#include "kv/token_pages.h"
#include "sched/kv_cache_manager.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/row_allocator.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <vector>

namespace warprow {

struct SchedulerConfig {
  enum class Policy : uint8_t { kFcfs, kPriority };

  int32_t max_num_seqs = 64;             // rows
  int32_t max_num_batched_tokens = 512;  // the token budget of a step
  int32_t max_model_len = 2048;          // prompt and outputs together
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  Policy policy = Policy::kFcfs;
  int32_t max_concurrent_steps = 1;  // 2 when async
  int32_t num_drafts = 0;  // tokens that a decoding row has verified in a step beside its own
  // Under chunked prefill, most tokens that a row with more prompt tokens left gets in a step in which
  // a request without so many waits or runs; 0: no limit. Not for prompts of up to long_prompt_len.
  int32_t long_prefill_token_threshold = 0;
  int32_t long_prompt_len = 0;
  // While rows decode, a step computes at most so many prompt tokens for each of them (but
  // kMinMixedPrefill), so that running streams do not wait long for a newcomer's prompt; 0: no limit.
  int32_t prefill_toks_per_decode = 0;
  bool fence_freed_blocks =
      false;  // reuse a block only after the last step that may touch it: see BlockPool
  KvCacheSpec kv;
  TokenPages token_pages;  // no pages: as many as all rows can use

  // Positions that a row's steps may touch beyond its longest length.
  [[nodiscard]] int32_t max_overhang() const {
    return draft_overhang(max_concurrent_steps, num_drafts);
  }
  [[nodiscard]] int32_t max_row_len() const { return max_model_len + max_overhang(); }
};

// Prompt tokens that a step may always have: fewer would cost more in steps than they save.
inline constexpr int32_t kMinMixedPrefill = 16;

// Counters since construction, and the state now.
struct SchedulerStats {
  int64_t num_steps = 0;                  // scheduled, those that only release rows included
  int64_t num_mixed_steps = 0;            // prefill and decode rows in one step
  int64_t num_partial_prefill_steps = 0;  // with a prefill chunk that does not reach its end
  int64_t num_preemptions = 0;
  int64_t num_prefix_hit_tokens = 0;
  int64_t num_scheduled_tokens = 0;
  int64_t num_drafted_tokens = 0;   // verified by the steps whose outputs were taken
  int64_t num_accepted_tokens = 0;  // of them
  int32_t max_steps_in_flight = 0;
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  int32_t num_kv_blocks = 0;       // without the null block
  int32_t num_kv_blocks_used = 0;  // held by requests
};

// Decides which requests advance in each step, by how many tokens, in which rows and blocks.
// Continuous batching: one token budget, no phases; each request closes the gap between computed
// and known tokens. Running requests come first, in order of admission, then waiting ones by
// (priority,) arrival. When blocks run out the running request last in that order gives up
// everything and waits to be admitted anew with prompt + outputs as its prefill.
//
// Use: schedule() up to max_concurrent_steps times ahead, then update_from_output() once for each
// step, in order. A request that certainly ends with the outputs in flight is not scheduled again.
// With drafts a step is planned and given blocks as if all drafts before it were accepted, while
// what cannot be taken back (blocks that a window has passed, names of full blocks) follows what is
// certain.
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

  // Whether a request of this size can ever run: kInvalidArgument naming the limit if not. Reads
  // only the configuration, so any thread may call it.
  [[nodiscard]] Result<void> check(int64_t prompt_len, int64_t max_tokens) const;

  // Queues a request, or refuses it like check(). Its id must not live already.
  [[nodiscard]] Result<void> add_request(const Request& request);

  // End a request wherever it is: the client left, or a stop string was found outside. Its row is
  // released in the next step and its outputs in flight are dropped. False if no such request
  // lives; no delta is made either way.
  bool abort_request(uint64_t id);
  bool finish_request(uint64_t id) { return abort_request(id); }

  // Ends every request and returns their ids, as abort_request for each.
  std::vector<uint64_t> abort_all();
  // Forgets every cached prefix, since the cache's memory is lost. No request may be running, and no
  // step in flight.
  void reset_prefix_cache();

  // Anything left to schedule or to tell the workers; steps in flight do not count.
  [[nodiscard]] bool has_work() const {
    return running_.size() + waiting_.size() > 0 || !finished_rows_.empty();
  }
  [[nodiscard]] int32_t num_in_flight() const { return num_in_flight_; }

  // Plans the next step into `out`. False, and no step made, if max_concurrent_steps are in flight,
  // or if no request can advance and no row is to be released. A step without tokens counts as a
  // step: its (empty) output is expected.
  bool schedule(SchedulerOutput& out);

  // Takes in the output of the oldest step in flight; `deltas` is replaced by one entry for each
  // request that got a token or failed, in the order of the output's rows. Tokens of requests that
  // have ended since are dropped.
  void update_from_output(const ModelRunnerOutput& out, std::vector<RequestDelta>& deltas);

  // For a step's grammar rows, between schedule() and the next call of it.
  // The grammar of the request that the last step planned runs in a row; -1 if that has ended since.
  [[nodiscard]] int32_t grammar_of(RowId row) const;
  // The row yields no token in the last step planned: it will have computed all of its tokens but
  // those of its logits. Its request keeps row and blocks and is not scheduled until resume(); preemption
  // resumes it too.
  void withhold(RowId row);
  // No-op if the request has ended or is not held.
  void resume(uint64_t id);

  // Gives `out` the capacity that any usual step needs.
  void reserve(SchedulerOutput& out) const;

  [[nodiscard]] SchedulerStats stats() const;
  // Running requests in order of admission, then waiting ones in their order. Allocates.
  [[nodiscard]] std::vector<RequestStatus> list_requests() const;

  // For tests. Aborts unless every block is held exactly as often as tables name it, or else is
  // free; only full hashed blocks are shared; and rows, lists and counts agree.
  void check_invariants() const;
  [[nodiscard]] const BlockPool& pool() const { return kv_.pool(); }
  [[nodiscard]] const PagePool& pages() const { return kv_.pages(); }
  // The request's block table; empty if it is not running.
  [[nodiscard]] std::vector<BlockId> block_table(uint64_t id, int32_t group) const;

 private:
  // What a step in flight does to one row; the request is found by index if it is still the one
  // that arrived then.
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

  [[nodiscard]] int32_t max_prefill_toks() const;
  [[nodiscard]] int32_t max_long_chunk() const;
  [[nodiscard]] bool has_short_request(bool prompts_only) const;
  [[nodiscard]] bool is_long_prefill(int32_t num_known, int32_t num_computed) const;
  [[nodiscard]] bool was_refused(const LiveRequest& request) const;
  void schedule_running(SchedulerOutput& out);
  int32_t advance_running(int32_t index, SchedulerOutput& out);
  bool admit_next(SchedulerOutput& out);
  void enter_row(int32_t index, int32_t num_hit, SchedulerOutput& out);
  void commit_step(SchedulerOutput& out);

  [[nodiscard]] int32_t pick_victim() const;
  void preempt(int32_t index, SchedulerOutput& out);
  void unschedule(RowId row, SchedulerOutput& out);
  void enqueue(int32_t index);
  void end(int32_t index);

  void take_result(const PlannedRow& planned,
                   const RowOutput& row,
                   const ModelRunnerOutput& out,
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
  RequestList running_;  // in order of admission
  RequestList waiting_;  // most urgent first
  std::vector<int32_t>
      row_owner_;  // [max_num_seqs] index of the request in the row; stale where the row is free
  std::vector<RowId> finished_rows_;  // released since the last step
  std::vector<StepRecord> records_;   // [max_concurrent_steps], by step modulo
  uint64_t next_arrival_ = 1;
  int64_t next_step_ = 1;
  int32_t num_in_flight_ = 0;
  int32_t budget_ = 0;          // tokens left in the step being planned
  int32_t prefill_budget_ = 0;  // of them, how many may be prompts
  int32_t long_chunk_ = 0;      // most tokens of a long prefill in it
  // The waiting request refused last for want of blocks, and the pool's change count then: until
  // that has grown, the same answer would follow.
  uint64_t refused_arrival_ = 0;
  int64_t refused_at_ = 0;
  SchedulerStats stats_;
};

}  // namespace warprow
