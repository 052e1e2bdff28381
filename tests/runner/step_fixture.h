// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cpu/cpu_device.h"
#include "runner/ops/runner_ops.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

namespace warprow::test {

// Runs the runner's operations on plain vectors, in order or shuffled: the worked examples of a step.
class StepFixture {
 public:
  explicit StepFixture(bool shuffle) {
    cpu::CpuDeviceOptions options;
    options.mode = cpu::CpuStreamMode::kInline;
    options.num_threads = 1;
    options.shuffle = shuffle;
    options.seed = 5;
    device = cpu::make_cpu_device(options);
    stream = device->make_stream();
    ops = make_runner_ops(*device);
  }

  // Adds a row to the batch: its state, its known tokens, and its number of tokens in this step.
  void add(const RowState& state,
           std::vector<int32_t> known,
           int32_t num_toks,
           int32_t num_logits = 1) {
    const auto row = static_cast<int32_t>(rows.size());
    rows.push_back(state);
    known.resize(kPageSize);
    prefill.insert(prefill.begin(), known.begin(), known.end());
    pages.resize(rows.size());
    std::iota(pages.rbegin(), pages.rend(), 0);
    idx_mapping.push_back(row);
    query_start_loc.push_back(query_start_loc.back() + num_toks);
    cu_num_logits.push_back(cu_num_logits.back() + num_logits);
  }

  void prepare(int32_t max_drafts = 0) {
    const auto num_rows = static_cast<int64_t>(idx_mapping.size());
    const auto num_toks = static_cast<size_t>(query_start_loc.back());
    const auto num_logits = static_cast<size_t>(cu_num_logits.back());
    input_ids.assign(num_toks, -7);
    positions.assign(num_toks, -7);
    seq_lens.assign(idx_mapping.size(), -7);
    logits_indices.assign(num_logits, -7);
    logit_row.assign(num_logits, -7);
    logit_pos.assign(num_logits, -7);
    later.resize(rows.size() * kPageSize, -7);
    Prologue op;
    op.num_rows = num_rows;
    op.prefill = {step(), tokens(), input_ids.data()};
    op.lengths = {step(), positions.data(), seq_lens.data()};
    op.combine = {step(),
                  {drafts.data(), max_drafts},
                  tokens(),
                  input_ids.data(),
                  logits_indices.data(),
                  logit_row.data(),
                  logit_pos.data()};
    ops->prologue(*stream, op);
  }

  // The slots of the batch's tokens in one group with blocks of 16.
  void map_slots(const std::vector<int32_t>& table, std::vector<int64_t>& slots) {
    Prologue op;
    op.num_rows = static_cast<int64_t>(idx_mapping.size());
    op.slots.step = step();
    const std::vector<int32_t> begins(rows.size());
    op.slots.groups[0] = {{table.data(), begins.data(), static_cast<int32_t>(table.size())}, 16};
    op.slots.num_groups = 1;
    op.slots.slots = slots.data();
    ops->prologue(*stream, op);
  }

  // Runs the epilogue for one sampled token per logit: counts, then the rows' next state.
  void finish(const std::vector<int32_t>& sampled) {
    num_sampled.assign(idx_mapping.size(), -7);
    num_rejected.assign(idx_mapping.size(), -7);
    Epilogue op;
    op.count = {step(),
                logit_row.data(),
                logits_indices.data(),
                input_ids.data(),
                sampled.data(),
                num_sampled.data(),
                num_rejected.data()};
    op.update = {step(), sampled.data(), num_sampled.data(), num_rejected.data(), tokens()};
    ops->epilogue(*stream, op, static_cast<int64_t>(idx_mapping.size()));
  }

  StepRows step() {
    return {idx_mapping.data(), query_start_loc.data(), cu_num_logits.data(), rows.data()};
  }

  RowTokens tokens() { return {pages.data(), prefill.data(), later.data(), 1, kPageShift}; }
  // The token that a step stored after a row's prefill.
  [[nodiscard]] int32_t later_token(int32_t row, int32_t position) {
    return later[static_cast<size_t>(tokens().cell(row, position))];
  }

  static constexpr int32_t kPageShift = 6;
  static constexpr int32_t kPageSize = 1 << kPageShift;  // one page per row, in reverse order
  std::unique_ptr<cpu::CpuDevice> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<RunnerOps> ops;
  std::vector<RowState> rows;
  std::vector<int32_t> pages, prefill, drafts, idx_mapping, query_start_loc{0}, cu_num_logits{0};
  std::vector<int32_t> input_ids, positions, seq_lens, logits_indices, logit_row, logit_pos;
  std::vector<int32_t> later;  // [rows, kPageSize]
  std::vector<int32_t> num_sampled, num_rejected;
};

}  // namespace warprow::test
