// SPDX-License-Identifier: Apache-2.0
// Every functor of the runner through the CUDA launcher and through the CPU's, on random steps.
#include "runner/ops/runner_ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/equal_tables.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;
using Ints = std::vector<int32_t>;

constexpr int32_t kPageShift = 9;
constexpr int32_t kPagesPerRow = 8;
constexpr int64_t kRowLen = int64_t{kPagesPerRow} << kPageShift;
constexpr int64_t kBlockSize = 16;
constexpr int64_t kTable = kRowLen / kBlockSize;
constexpr int64_t kDraftsOfARow = 2;

// A step with random rows: decode rows have one token, prefill rows have many.
struct Step {
  std::vector<RowState> rows;
  Ints idx_mapping, query_start_loc{0}, cu_num_logits{0}, pages, prefill, table, begins, drafts;
  int64_t num_rows = 0;  // including padding

  Step(int32_t live, int32_t padding, bool prefills, std::mt19937& rng)
      : rows(static_cast<size_t>(live + 3)), num_rows(live + padding) {
    const auto below = [&](int32_t n) { return static_cast<int32_t>(rng() % n); };
    for (RowState& row : rows) {
      row.prompt_len = 1 + below(1500);
      row.prefill_len = row.prompt_len + below(20);
      row.num_computed_tokens = below(row.prefill_len + 500);
      row.total_len = std::max(row.prefill_len, row.num_computed_tokens + 1);
      row.last_sampled = below(1000);
    }
    for (int32_t b = 0; b < live; ++b) {
      const RowState& row = rows[static_cast<size_t>(b + 1)];
      const int32_t left = row.prefill_len - row.num_computed_tokens;
      const bool drafting = left <= 0 && below(3) == 0;
      const int32_t toks = left > 0 ? (prefills ? 1 + below(left) : 1) : drafting ? 3 : 1;
      idx_mapping.push_back(b + 1);
      query_start_loc.push_back(query_start_loc.back() + toks);
      cu_num_logits.push_back(cu_num_logits.back() + (drafting ? 3 : 1));
    }
    for (int32_t b = 0; b < padding; ++b) {
      idx_mapping.push_back(-1);
      query_start_loc.push_back(query_start_loc.back());
      cu_num_logits.push_back(cu_num_logits.back());
    }
    const auto fill = [&](Ints& v, int64_t n) {
      v.resize(static_cast<size_t>(n));
      for (int32_t& x : v) {
        x = below(30000);
      }
    };
    fill(prefill, (live + 3) * kRowLen);
    fill(table, (live + 3) * kTable);
    begins = test::equal_begins(live + 3, kTable);
    std::shuffle(begins.begin(), begins.end(), rng);
    pages.resize(static_cast<size_t>((live + 3) * kPagesPerRow));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), rng);
    fill(drafts, (live + 3) * kDraftsOfARow);
  }
  [[nodiscard]] int64_t num_toks() const { return query_start_loc.back(); }
  [[nodiscard]] int64_t num_logits() const { return cu_num_logits.back(); }
  template <typename Side>
  [[nodiscard]] RowTokens tokens(Side& side) const {
    return {side.put(pages),
            side.put(prefill),
            side.template fresh<int32_t>(static_cast<int64_t>(prefill.size())),
            kPagesPerRow,
            kPageShift};
  }
};

class RunnerOpsCuda : public CudaTest {
 protected:
  // The memory of one side, written and read by the host as bytes.
  struct Side {
    RunnerOps* ops;
    Stream* stream;
    std::function<std::byte*(const std::byte*, size_t)> place;
    std::vector<std::pair<std::byte*, size_t>> placed{};

    template <typename T>
    T* put(const std::vector<T>& v) {
      std::byte* at = place(reinterpret_cast<const std::byte*>(v.data()), v.size() * sizeof(T));
      placed.emplace_back(at, v.size() * sizeof(T));
      return reinterpret_cast<T*>(at);
    }
    template <typename T>
    T* fresh(int64_t n) {
      return put(std::vector<T>(static_cast<size_t>(n), T{77}));
    }
  };

  // Runs body(side) on both sides and compares every byte that either could have written.
  template <typename Body>
  void compare(const Body& body) {
    std::vector<std::vector<std::byte>> host;
    const auto cpu_ops = make_runner_ops(cpu_device());
    Side cpu{cpu_ops.get(), &cpu_stream(), [&](const std::byte* p, size_t n) {
               host.emplace_back(p, p + n);
               return host.back().data();
             }};
    const auto gpu_ops = make_runner_ops(gpu());
    Side cuda{gpu_ops.get(), &stream(), [&](const std::byte* p, size_t n) {
                return upload(std::vector<std::byte>(p, p + n));
              }};
    body(cpu);
    body(cuda);
    ASSERT_EQ(cpu.placed.size(), cuda.placed.size());
    for (size_t i = 0; i < cpu.placed.size(); ++i) {
      const auto [at, bytes] = cpu.placed[i];
      const auto got = download(cuda.placed[i].first, bytes);
      EXPECT_EQ(std::memcmp(at, got.data(), bytes), 0) << "array " << i;
    }
  }

  static void run_step(const Step& step, Side& side) {
    StepRows view;
    view.idx_mapping = side.put(step.idx_mapping);
    view.query_start_loc = side.put(step.query_start_loc);
    view.cu_num_logits = side.put(step.cu_num_logits);
    view.rows = side.put(step.rows);
    const int64_t pad = 40;
    auto* const ids = side.fresh<int32_t>(step.num_toks() + pad);
    auto* const positions = side.fresh<int32_t>(step.num_toks() + pad);
    auto* const slots = side.fresh<int64_t>(step.num_toks() + pad);
    auto* const logit_row = side.fresh<int32_t>(step.num_logits() + pad);
    Prologue op;
    op.num_rows = step.num_rows;
    const RowTokens tokens = step.tokens(side);
    op.prefill = {view, tokens, ids};
    op.lengths = {view, positions, side.fresh<int32_t>(step.num_rows)};
    auto* const logits_indices = side.fresh<int32_t>(step.num_logits() + pad);
    op.combine = {view,
                  {side.put(step.drafts), kDraftsOfARow},
                  tokens,
                  ids,
                  logits_indices,
                  logit_row,
                  side.fresh<int32_t>(step.num_logits())};
    op.slots.step = view;
    op.slots.groups[0] = {
        {side.put(step.table), side.put(step.begins), static_cast<int32_t>(step.table.size())},
        kBlockSize};
    op.slots.num_groups = 1;
    op.slots.slots_stride = step.num_toks() + pad;
    op.slots.slots = slots;
    op.tail = {view,
               static_cast<int32_t>(step.num_rows),
               static_cast<int32_t>(step.num_toks() + pad),
               static_cast<int32_t>(step.num_logits() + pad),
               1,
               step.num_toks() + pad,
               ids,
               positions,
               slots,
               logits_indices,
               logit_row};
    op.num_items = std::max(step.num_toks(), step.num_logits()) + pad;
    side.ops->prologue(*side.stream, op);
  }
};

TEST_F(RunnerOpsCuda, Prologue) {
  std::mt19937 rng(3);
  for (const int32_t live : {1, 7, 60, 64, 65, 300}) {
    const Step step(live, live % 5, live < 100, rng);
    compare([&](Side& side) { run_step(step, side); });
  }
}

TEST_F(RunnerOpsCuda, StagedWrites) {
  std::mt19937 rng(4);
  Ints values(5000);
  std::generate(values.begin(), values.end(), [&] { return static_cast<int32_t>(rng()); });
  std::vector<StagedGroup> groups;
  std::vector<StagedWrite> writes;
  for (int32_t g = 0; g < 90; ++g) {
    StagedGroup group;
    group.table = g % 2;
    group.row = g / 2;
    group.first_write = static_cast<int32_t>(writes.size());
    group.num_writes = 1 + g % 4;
    group.first_cell = 1000;
    for (int32_t w = 0; w < group.num_writes; ++w) {
      StagedWrite write;
      write.start = static_cast<int32_t>(rng() % 200);
      write.count = static_cast<int32_t>(rng() % 100);
      write.begin = static_cast<int32_t>(rng() % 4900);
      group.first_cell = std::min(group.first_cell, write.start);
      group.end_cell = std::max(group.end_cell, write.start + write.count);
      writes.push_back(write);
    }
    groups.push_back(group);
  }
  compare([&](Side& side) {
    UnpackStep op;
    op.from = side.put(values);
    op.num_words = 1000;
    op.to = side.fresh<int32_t>(op.num_words);
    op.staged.tables[0] = {side.fresh<int32_t>(45 * 300), 300};
    op.staged.tables[1] = {side.fresh<int32_t>(45 * 310), 310};
    op.staged.groups = side.put(groups);
    op.staged.writes = side.put(writes);
    op.staged.values = side.put(values);
    side.ops->unpack_step(*side.stream, op, static_cast<int64_t>(groups.size()));
  });
}

// A block of lanes finds what one lane finds, also in rows longer than it has lanes, and copies the prompt once.
TEST_F(RunnerOpsCuda, ProposeNgram) {
  std::mt19937 rng(6);
  for (const int32_t vocab : {3, 60, 2000}) {
    Step step(40, 3, false, rng);
    Ints num_sampled(static_cast<size_t>(step.num_rows));
    for (size_t b = 0; b < step.idx_mapping.size(); ++b) {
      num_sampled[b] = static_cast<int32_t>(rng() % 3);
      if (step.idx_mapping[b] >= 0 && b % 2 == 0) {  // its first proposal
        RowState& row = step.rows[static_cast<size_t>(step.idx_mapping[b])];
        row.total_len = row.prefill_len + num_sampled[b];
      }
    }
    Ints later(step.prefill.size());
    for (Ints* tokens : {&step.prefill, &later}) {
      std::generate(tokens->begin(), tokens->end(), [&] {
        return static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab));
      });
    }
    compare([&](Side& side) {
      ProposeNgram op;
      op.step.idx_mapping = side.put(step.idx_mapping);
      op.step.rows = side.put(step.rows);
      op.num_sampled = side.put(num_sampled);
      op.known = {
          side.put(step.pages), side.put(step.prefill), side.put(later), kPagesPerRow, kPageShift};
      constexpr int64_t kDrafts = 7;
      op.drafts = {side.fresh<int32_t>(std::ssize(step.rows) * kDrafts), kDrafts};
      op.min_n = 1;
      op.max_n = vocab == 3 ? 9 : 2;
      side.ops->propose_ngram(*side.stream, op, step.num_rows);
    });
  }
}

TEST_F(RunnerOpsCuda, AfterSampling) {
  std::mt19937 rng(5);
  for (const int32_t live : {1, 33, 300}) {
    const Step step(live, 4, false, rng);
    constexpr int64_t kMaxTop = 20;
    // Few distinct tokens, so that many drafts are accepted.
    const auto few = [&](int64_t n, int32_t first) {
      Ints values(static_cast<size_t>(n));
      std::generate(
          values.begin(), values.end(), [&] { return static_cast<int32_t>(rng() % 3) + first; });
      return values;
    };
    const Ints sampled = few(step.num_logits(), 0);
    const Ints ids = few(step.num_toks(), 0);
    const Ints logit_row = few(step.num_logits(), kWithheldRow);
    Ints logits_indices(static_cast<size_t>(step.num_logits()));
    std::generate(logits_indices.begin(), logits_indices.end(), [&] {
      return static_cast<int32_t>(rng() % static_cast<uint32_t>(step.num_toks()));
    });
    compare([&](Side& side) {
      Epilogue op;
      CountSampled& count = op.count;
      count.step.idx_mapping = side.put(step.idx_mapping);
      count.step.query_start_loc = side.put(step.query_start_loc);
      count.step.cu_num_logits = side.put(step.cu_num_logits);
      count.step.rows = side.put(step.rows);
      count.logit_row = side.put(logit_row);
      count.logits_indices = side.put(logits_indices);
      count.input_ids = side.put(ids);
      count.tokens = side.put(sampled);
      count.num_sampled = side.fresh<int32_t>(step.num_rows);
      count.num_rejected = side.fresh<int32_t>(step.num_rows);
      PostUpdate& update = op.update;
      update.step = count.step;
      update.tokens = count.tokens;
      update.num_sampled = count.num_sampled;
      update.num_rejected = count.num_rejected;
      update.known = step.tokens(side);
      PublishOutput& publish = op.publish;
      publish.step = count.step;
      constexpr int32_t kEntry = 2;
      constexpr int64_t kStride = 40;
      const int64_t room = step.num_logits() + step.num_rows + kEntry * kStride;
      for (SampledArrays* arrays : {&publish.from, &publish.ring}) {
        arrays->num_sampled = side.fresh<int32_t>(room);
        arrays->num_rejected = side.fresh<int32_t>(room);
        arrays->tokens = side.fresh<int32_t>(room);
        arrays->logprob = side.fresh<float>(room);
        arrays->rank = side.fresh<int32_t>(room);
        arrays->top_ids = side.fresh<int32_t>(room * kMaxTop);
        arrays->top_logprobs = side.fresh<float>(room * kMaxTop);
      }
      publish.entry = side.put(Ints{kEntry});
      publish.entry_stride = kStride;
      publish.from.num_sampled = count.num_sampled;
      publish.from.num_rejected = count.num_rejected;
      publish.from.tokens = side.put(sampled);
      publish.max_top = kMaxTop;
      publish.with_logprobs = true;
      side.ops->epilogue(*side.stream, op, step.num_rows);
      PublishDrafts drafts{count.step, side.put(step.drafts), kDraftsOfARow};
      drafts.ring = side.fresh<int32_t>(step.num_rows * kDraftsOfARow + kEntry * kStride);
      drafts.entry = publish.entry;
      drafts.entry_stride = kStride;
      side.ops->publish_drafts(*side.stream, drafts, step.num_rows);
    });
  }
}

}  // namespace
}  // namespace warprow
