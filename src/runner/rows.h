// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/arena.h"
#include "runner/ops/combine_tokens.h"
#include "runner/row_state.h"
#include "runner/staged_writes.h"
#include "runner/step_limits.h"
#include "runner/token_store.h"
#include "wire/scheduler_output.h"
#include "wire/token_lists.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The persistent rows: a request owns one from admission to its end. The device's copy (RowState,
// parameters, tokens) is authoritative; the host keeps what it needs for shapes.
//
// Owns: the host mirrors; device arrays lie in the state arena.
// Thread: the runner's.
// Invariant: a row is live between add and release; a released row's device cells are left as they
// are.
class RequestRows {
 public:
  static constexpr int32_t kStopIdsWidth = 1 + kMaxStopIds;

  RequestRows(Arena& state, Device& device, const StepLimits& limits, StagedTables& staged);

  // Adds pages for the row's tokens; for a new row, before add().
  void append(const PageAppend& append, const SchedulerOutput& out, StagedWrites& staged);
  // Admits a new row of `out`, the step's plan.
  void add(const NewRow& row, const SchedulerOutput& out, StagedWrites& staged);
  void release(RowId row);
  // Sets drafts that come from the host, for the row's next step.
  void set_drafts(RowId row, std::span<const TokenId> drafts, StagedWrites& staged) const;

  struct Host {
    bool live = false;
    uint32_t generation = 0;
    int32_t prefill_len = 0;
    int32_t num_logprobs = -1;
    uint32_t sample_rules = 0;  // SampleRules
  };
  [[nodiscard]] const Host& host(RowId row) const {
    return hosts_[static_cast<size_t>(index_of(row))];
  }

  [[nodiscard]] int32_t max_num_seqs() const { return static_cast<int32_t>(hosts_.size()); }
  [[nodiscard]] RowState* states() const { return states_; }
  [[nodiscard]] SamplingParams* params() const { return params_; }
  // [max_num_seqs, kStopIdsWidth]  a count and ids; rows with min_tokens only
  [[nodiscard]] const int32_t* stop_ids() const { return stop_ids_; }
  // [max_num_seqs, kTokenListsWidth]  packed; rows with token lists only
  [[nodiscard]] const int32_t* token_lists() const { return token_lists_; }
  [[nodiscard]] const TokenStore& store() const { return store_; }
  // A proposer writes them after the update of the rows; the row's next step reads them.
  [[nodiscard]] const DraftTokens& drafts() const { return drafts_; }

 private:
  RowState* states_;        // dev [max_num_seqs]
  SamplingParams* params_;  // dev [max_num_seqs]
  int32_t* stop_ids_;       // dev i32 [max_num_seqs, kStopIdsWidth]
  int32_t* token_lists_;    // dev i32 [max_num_seqs, kTokenListsWidth]
  DraftTokens drafts_;      // dev [max_num_seqs, max_drafts]
  // Indices in staged writes.
  int32_t state_table_ = -1;
  int32_t params_table_ = -1;
  int32_t stop_ids_table_ = -1;
  int32_t token_lists_table_ = -1;
  int32_t drafts_table_ = -1;
  TokenStore store_;
  std::vector<Host> hosts_;  // [max_num_seqs]
};

}  // namespace warprow
