// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <functional>
#include <map>

namespace warprow::testing {

// Answers a SchedulerOutput without any model: a row whose step reaches its last known token
// samples token(row), or `token` where no function is set.
class FakeRunner {
 public:
  TokenId token = 7;
  std::function<TokenId(RowId)> token_of;

  ModelRunnerOutput run(const SchedulerOutput& step) {
    for (const NewRow& row : step.new_rows) {
      rows_[row.row] = {row.generation, row.prefill_len};
    }
    ModelRunnerOutput out;
    out.step = step.step;
    for (const ScheduledRow& s : step.scheduled) {
      Row& row = rows_.at(s.row);
      RowOutput& result = out.rows.emplace_back();
      result.row = s.row;
      result.generation = row.generation;
      result.tokens = {static_cast<int32_t>(out.token_ids.size()), 0};
      if (s.num_computed_tokens + s.num_tokens == row.len) {
        result.kind = RowResult::kTokens;
        result.tokens.count = 1;
        out.token_ids.push_back(token_of ? token_of(s.row) : token);
        ++row.len;
      }
    }
    return out;
  }

 private:
  struct Row {
    uint32_t generation = 0;
    int32_t len = 0;
  };
  std::map<RowId, Row> rows_;
};

}  // namespace warprow::testing
