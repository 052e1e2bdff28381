// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <vector>

namespace warprow {

// Decides which rows of a recording can run again, and makes the steps that run them. A row that began before the first
// message is left out, with its tokens, blocks and pages. A new row whose prefix was in the cache runs if its blocks
// were written by rows that ran; blocks whose content is not known are computed again first, in steps of their own. A
// row for which that is impossible, because its window has skipped blocks, is left out too.
//
// Owns: what is known of rows and blocks. Thread: one.
class RowSelection {
 public:
  explicit RowSelection(const ModelFacts& facts);

  // The steps that do what `step` did, in order, `step` itself last. Valid until the next call.
  const std::vector<SchedulerOutput>& select(const SchedulerOutput& step);
  // The masks of the rows that run.
  const GrammarOutput& select(const GrammarOutput& grammar);

  // Messages were lost: the rows are released in the next step, and nothing is known of the blocks.
  void restart();

  [[nodiscard]] bool runs(RowId row) const { return rows_[index(row)].runs; }
  // The row's tokens are not those of the recording any more, so neither is what it writes to the cache.
  void distrust(RowId row, uint32_t generation);

  [[nodiscard]] int64_t num_begun() const { return num_begun_; }            // rows that ran
  [[nodiscard]] int64_t num_left_out() const { return num_left_out_; }      // rows that could not
  [[nodiscard]] int64_t num_recomputed() const { return num_recomputed_; }  // tokens of prefixes

 private:
  struct Row {
    bool runs = false;
    bool was_left_out = false;     // and counted
    uint32_t generation = 0;       // with runs
    bool is_trusted = true;        // what it writes is what the recording's row wrote
    std::vector<BlockId> written;  // blocks that were new to it
  };
  [[nodiscard]] static size_t index(RowId row) { return static_cast<size_t>(index_of(row)); }

  void release(RowId row);
  void begin(const NewRow& added, const SchedulerOutput& step);
  [[nodiscard]] int32_t num_known_tokens(const NewRow& added, const SchedulerOutput& step) const;
  void recompute(const NewRow& added, int32_t num_known, const SchedulerOutput& step);
  void note_blocks(const BlockAppend& append, int32_t num_hit, const SchedulerOutput& step);
  void copy_selected(const SchedulerOutput& step);
  SchedulerOutput& add_step(const SchedulerOutput& step);

  const ModelFacts facts_;
  std::vector<Row> rows_;          // [max_num_seqs]
  std::vector<uint8_t> is_known_;  // [num_blocks] the block has the content it had in the recording
  std::vector<RowId> released_;    // to be released in the next step
  std::vector<SchedulerOutput> steps_;
  GrammarOutput grammar_;
  int64_t num_begun_ = 0;
  int64_t num_left_out_ = 0;
  int64_t num_recomputed_ = 0;
};

}  // namespace warprow
