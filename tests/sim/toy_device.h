// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/sim/toy_model.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <algorithm>
#include <random>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {

// Runs SchedulerOutputs on the toy model and uses only their contents: rows, block tables, and KV memory in which
// groups overlap as on a device (layer i of each group is in the same tensor). It proposes its own drafts, the row's
// next tokens, which are wrong from a random position on, and verifies them by match. A violation of SchedulerOutput's
// contract is a test failure.
class ToyDevice {
 public:
  ToyDevice(ToyModel model, int32_t max_rows, int32_t num_blocks, int32_t num_drafts, uint32_t seed)
      : model_(std::move(model)),
        rows_(static_cast<size_t>(max_rows)),
        num_drafts_(num_drafts),
        random_(seed) {
    for (const KvGroupSpec& group : model_.groups) {
      block_stride_ = std::max(block_stride_, group.block_size);
    }
    for (size_t layer = 0; layer < model_.layer_group.size(); ++layer) {
      const auto end = model_.layer_group.begin() + static_cast<std::ptrdiff_t>(layer);
      tensor_of_layer_.push_back(static_cast<size_t>(
          std::count(model_.layer_group.begin(), end, model_.layer_group[layer])));
    }
    // Uninitialised contents, as in a fresh allocation.
    memory_.resize(model_.layer_group.size());
    for (auto& tensor : memory_) {
      tensor.resize(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_stride_));
      std::generate(tensor.begin(), tensor.end(), [this] { return random_(); });
    }
  }

  ModelRunnerOutput run(const SchedulerOutput& step, const std::vector<RowId>& withheld = {}) {
    release(step.finished_rows);
    release(step.preempted_rows);
    for (const NewRow& row : step.new_rows) {
      enter(row, step);
    }
    append_blocks(step);
    ModelRunnerOutput out;
    out.step = step.step;
    forward(step);
    sample(step, withheld, out);
    return out;
  }

 private:
  struct Row {
    bool live = false;
    uint32_t generation = 0;
    int32_t num_computed = 0;
    std::vector<TokenId> tokens;
    std::vector<std::vector<BlockId>> tables;  // by group
    std::vector<TokenId> drafts;               // drafts that follow tokens
  };
  struct Query {
    const Row* row;
    int32_t pos;
    uint64_t x;
  };

  Row& at(RowId row) { return rows_.at(static_cast<size_t>(index_of(row))); }

  void release(const std::vector<RowId>& rows) {
    for (const RowId row : rows) {
      EXPECT_TRUE(at(row).live);
      at(row).live = false;
    }
  }

  void enter(const NewRow& row, const SchedulerOutput& step) {
    Row& r = at(row.row);
    EXPECT_FALSE(r.live);
    EXPECT_GT(row.generation, r.generation);
    EXPECT_EQ(row.tokens.count, row.prefill_len);
    EXPECT_GE(row.prefill_len, row.prompt_len);
    const auto begin = step.token_ids.begin() + row.tokens.begin;
    r = {true, row.generation, row.num_computed_tokens, {begin, begin + row.tokens.count}, {}, {}};
    r.tables.resize(model_.groups.size());
  }

  void append_blocks(const SchedulerOutput& step) {
    for (const BlockAppend& append : step.block_appends) {
      Row& r = at(append.row);
      ASSERT_TRUE(r.live);
      auto& table = r.tables.at(static_cast<size_t>(append.group));
      ASSERT_EQ(append.start, static_cast<int32_t>(table.size()));
      const auto begin = step.block_ids.begin() + append.blocks.begin;
      table.insert(table.end(), begin, begin + append.blocks.count);
    }
  }

  uint64_t& cell(size_t layer, const Row& row, int32_t pos) {
    const auto group = static_cast<size_t>(model_.layer_group[layer]);
    const int32_t block_size = model_.groups[group].block_size;
    const BlockId block = row.tables[group].at(static_cast<size_t>(pos / block_size));
    EXPECT_NE(block, kNullBlock);
    const size_t slot = static_cast<size_t>(index_of(block)) * static_cast<size_t>(block_stride_) +
                        static_cast<size_t>(pos % block_size);
    return memory_[tensor_of_layer_[layer]].at(slot);
  }

  // All rows write a layer's keys before any row reads them, as in a batched kernel.
  void forward(const SchedulerOutput& step) {
    queries_.clear();
    for (const ScheduledRow& s : step.scheduled) {
      const Row& r = at(s.row);
      ASSERT_TRUE(r.live);
      ASSERT_GE(s.num_tokens, 1);
      ASSERT_GE(s.num_computed_tokens, r.num_computed);
      if (num_drafts_ == 0) {
        ASSERT_EQ(s.num_computed_tokens, r.num_computed);
      }
      const auto num_planned = static_cast<size_t>(s.num_computed_tokens + s.num_tokens);
      for (size_t g = 0; g < r.tables.size(); ++g) {
        const auto block_size = static_cast<size_t>(model_.groups[g].block_size);
        ASSERT_LE(num_planned, r.tables[g].size() * block_size) << "a slot without a block";
      }
      std::vector<TokenId> tokens = r.tokens;
      ASSERT_LE(static_cast<size_t>(s.num_drafts), r.drafts.size());
      tokens.insert(tokens.end(), r.drafts.begin(), r.drafts.begin() + s.num_drafts);
      for (int32_t pos = r.num_computed; pos < r.num_computed + s.num_tokens; ++pos) {
        queries_.push_back({&r, pos, static_cast<uint64_t>(tokens.at(static_cast<size_t>(pos)))});
      }
    }
    ASSERT_EQ(static_cast<int32_t>(queries_.size()), step.total_num_tokens);
    for (size_t layer = 0; layer < model_.layer_group.size(); ++layer) {
      written_.clear();
      for (const Query& q : queries_) {
        uint64_t& k = cell(layer, *q.row, q.pos);
        EXPECT_TRUE(written_.insert(&k).second) << "a slot is written twice in step " << step.step;
        k = ToyModel::mix(q.x, static_cast<uint64_t>(q.pos));
      }
      const KvGroupSpec& group = model_.groups[static_cast<size_t>(model_.layer_group[layer])];
      for (Query& q : queries_) {
        for (int32_t seen = ToyModel::first_seen(group, q.pos); seen <= q.pos; ++seen) {
          q.x = ToyModel::mix(q.x, cell(layer, *q.row, seen));
        }
      }
    }
  }

  // In any order, because the runner sorts its batch.
  void sample(const SchedulerOutput& step,
              const std::vector<RowId>& withheld,
              ModelRunnerOutput& out) {
    size_t last_query = 0;
    for (const ScheduledRow& s : step.scheduled) {
      last_query += static_cast<size_t>(s.num_tokens);
      Row& r = at(s.row);
      RowOutput result;
      result.row = s.row;
      result.generation = r.generation;
      result.tokens.begin = static_cast<int32_t>(out.token_ids.size());
      const bool samples =
          r.num_computed + s.num_tokens - s.num_drafts == static_cast<int32_t>(r.tokens.size());
      EXPECT_EQ(s.num_logits, samples ? 1 + s.num_drafts : 0);
      if (samples) {
        result.kind = RowResult::kTokens;
        const bool waits = std::find(withheld.begin(), withheld.end(), s.row) != withheld.end();
        if (!waits) {
          verify(r, s, last_query - static_cast<size_t>(s.num_logits), out);
        }
        result.tokens.count = static_cast<int32_t>(out.token_ids.size()) - result.tokens.begin;
        result.num_rejected = s.num_logits - result.tokens.count;
      }
      r.num_computed += s.num_tokens - result.num_rejected;
      out.rows.push_back(result);
    }
    std::shuffle(out.rows.begin(), out.rows.end(), random_);
  }

  // The row's tokens: from its first logit to the first one that differs from the next draft.
  void verify(Row& row, const ScheduledRow& s, size_t first_query, ModelRunnerOutput& out) {
    const std::vector<TokenId> drafts = std::move(row.drafts);
    for (int32_t i = 0; i < s.num_logits; ++i) {
      const auto at = static_cast<size_t>(i);
      row.tokens.push_back(model_.token_of(queries_[first_query + at].x));
      out.token_ids.push_back(row.tokens.back());
      if (i < s.num_drafts && row.tokens.back() != drafts[at]) {
        break;
      }
    }
    row.drafts.clear();
    if (num_drafts_ > 0) {
      row.drafts = model_.generate(row.tokens, num_drafts_);
      const auto num_right =
          static_cast<size_t>(random_() % static_cast<uint64_t>(num_drafts_ + 1));
      for (size_t i = num_right; i < row.drafts.size(); ++i) {
        row.drafts[i] = (row.drafts[i] + 1) % model_.vocab_size;
      }
    }
  }

  ToyModel model_;
  std::vector<Row> rows_;
  int32_t num_drafts_;
  std::mt19937_64 random_;
  int32_t block_stride_ = 0;
  std::vector<size_t> tensor_of_layer_;  // a layer's index within its group
  std::vector<std::vector<uint64_t>> memory_;
  std::vector<Query> queries_;
  std::unordered_set<const uint64_t*> written_;
};

}  // namespace warprow::testing
