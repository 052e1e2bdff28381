// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace warprow {

// Checks the messages of steps against each other and against the limits of the run, without a model: which rows live,
// how far each has come, which blocks and pages it holds, that prompts kept to their limit beside decoding rows, that no
// other row holds a block that it writes, and that each output belongs to its step. Needs no ids.
//
// Rows that began before the first message are checked from their first appearance on, their blocks as far as they are
// known.
//
// Owns: the state of rows, blocks and pages. Thread: one.
class ScheduleCheck {
 public:
  explicit ScheduleCheck(const ModelFacts& facts);

  // Messages were lost: everything before is forgotten.
  void restart();

  // Each returns the first contradiction, "row 3 is given out twice", or "". Grammar masks belong to the last step. The
  // calls have the order in which the messages were sent.
  std::string add(const SchedulerOutput& step);
  std::string add(const GrammarOutput& grammar);
  std::string add(const ModelRunnerOutput& output);

 private:
  struct Table {
    int32_t begin = 0;            // blocks before it are not known, or a window has passed them
    std::vector<BlockId> blocks;  // from `begin` on
    bool is_known = false;        // false: no block was seen yet
  };
  struct Row {
    bool is_live = false;
    bool is_whole = false;  // its beginning was seen
    uint32_t generation = 0;
    int32_t prefill_len = 0;      // with is_whole
    int32_t num_computed = 0;     // an upper bound while drafts are in flight
    std::vector<Table> tables{};  // by group
    std::vector<PageId> pages{};
  };
  struct Planned {
    ScheduledRow row;
    uint32_t generation = 0;
    bool has_generation = false;
    bool is_withheld = false;
  };
  struct Step {
    std::vector<Planned> rows{};
    std::vector<RowId> grammar_rows{};
    int32_t num_tokens = 0;
    int32_t num_prefill_tokens = 0;  // of rows whose beginning was seen
  };

  Row* find(RowId row);
  std::string release(RowId row);
  std::string begin(const NewRow& added);
  std::string advance(const ScheduledRow& scheduled, Step& step);
  std::string append(const BlockAppend& append, const SchedulerOutput& step);
  std::string append(const PageAppend& append, const SchedulerOutput& step);
  std::string check_room(const ScheduledRow& scheduled);
  std::string take(Planned& planned, const RowOutput& output);
  void drop_passed_blocks(Row& row);
  void hold(BlockId block, int32_t change);

  const ModelFacts facts_;
  std::vector<Row> rows_;           // [max_num_seqs]
  std::vector<int32_t> holders_;    // [num_blocks] live rows with the block in a table
  std::vector<uint8_t> page_held_;  // [num_pages]
  std::map<int64_t, Step> steps_;   // in flight, by number
  int64_t last_step_ = -1;          // -1: none yet
};

}  // namespace warprow
