// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace warprow::testing {

// Answers a SchedulerOutput without a model. A row that samples gets run_of(row), cut to its number of logits. Without
// run_of it gets token_of(row), else `token`. A row of a pooling request gets a vector.
class FakeRunner {
 public:
  TokenId token = 7;
  std::function<TokenId(RowId)> token_of;
  std::function<std::vector<TokenId>(RowId)> run_of;

  ModelRunnerOutput run(const SchedulerOutput& step) {
    for (const NewRow& row : step.new_rows) {
      rows_[row.row] = {
          row.generation, row.num_computed_tokens, row.prefill_len, row.params.is_pooled()};
    }
    ModelRunnerOutput out;
    out.step = step.step;
    int32_t num_pooled = 0;
    for (const ScheduledRow& s : step.scheduled) {
      Row& row = rows_.at(s.row);
      RowOutput& result = out.rows.emplace_back();
      result.row = s.row;
      result.generation = row.generation;
      result.tokens = {static_cast<int32_t>(out.token_ids.size()), 0};
      const bool ends = row.num_computed + s.num_tokens - s.num_drafts == row.len;
      if (ends && row.is_pooled) {
        result.kind = RowResult::kPooled;
        result.pooled = {num_pooled++, 1};
      } else if (ends) {
        std::vector<TokenId> tokens = run_of ? run_of(s.row) : std::vector{single(s.row)};
        tokens.resize(std::min(tokens.size(), size_t{1} + static_cast<size_t>(s.num_drafts)));
        result.kind = RowResult::kTokens;
        result.tokens.count = static_cast<int32_t>(tokens.size());
        result.num_rejected = 1 + s.num_drafts - result.tokens.count;
        out.token_ids.insert(out.token_ids.end(), tokens.begin(), tokens.end());
      }
      row.num_computed += s.num_tokens - result.num_rejected;
      row.len += result.tokens.count;
    }
    return out;
  }

 private:
  struct Row {
    uint32_t generation = 0;
    int32_t num_computed = 0;
    int32_t len = 0;
    bool is_pooled = false;
  };

  [[nodiscard]] TokenId single(RowId row) const { return token_of ? token_of(row) : token; }

  std::map<RowId, Row> rows_;
};

}  // namespace warprow::testing
