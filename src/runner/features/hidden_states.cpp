// SPDX-License-Identifier: Apache-2.0
#include "runner/features/hidden_states.h"

#include "base/dtype.h"
#include "device/range.h"
#include "models/model.h"
#include "runner/features/step_pieces.h"
#include "runner/rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace warprow {
namespace {

// What a row asked for, and the hidden states of its prompt so far.
struct WantedStates {
  uint32_t generation = 0;
  uint32_t flags = 0;  // of SamplingParams
  std::vector<float> values;
};

// Hidden states that a step copied: [max_num_toks, hidden_size].
struct CopiedStates {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t width = 0;
};
using StatePieces = StepPieces<CopiedStates, WantedStates>;

// Owns: the ring and the rows' results.
class HiddenStates final : public RunnerFeature {
 public:
  explicit HiddenStates(const RunnerParts& parts)
      : rows_(*parts.rows), pieces_(parts.limits.max_steps_in_flight, parts.limits.max_num_seqs) {
    const size_t step_bytes = static_cast<size_t>(parts.limits.max_num_toks) *
                              static_cast<size_t>(parts.model->facts().hidden_size) *
                              dtype_bytes(parts.model->facts().act_dtype);
    memory_ = parts.device->make_pinned(pieces_.steps().size() * step_bytes);
    std::byte* data = memory_.data();
    for (StatePieces::Step& step : pieces_.steps()) {
      step.memory.data = data;
      data += step_bytes;
    }
  }

  void on_row_added(const NewRow& row,
                    const SchedulerOutput& /*step*/,
                    StagedWrites& /*staged*/) override {
    WantedStates& wanted = pieces_.of(row.row, row.generation);
    wanted = {};
    wanted.generation = row.generation;
    wanted.flags =
        row.params.flags & (SamplingParams::kOutputHidden | SamplingParams::kPromptHidden);
  }

  void on_row_removed(RowId row) override {
    const uint32_t generation = rows_.host(row).generation;
    if (pieces_.of(row, generation).flags != 0) {
      pieces_.remove(row, generation);
    }
  }

  void after_forward(Stream& stream, const InputBatch& batch) override {
    StatePieces::Step& step = pieces_.begin_step();
    step.memory.dtype = batch.hidden.dtype;
    step.memory.width = batch.hidden.shape[1];
    int64_t first_tok = 0;
    int64_t used = 0;
    for (const ScheduledRow& row : batch.rows) {
      const WantedStates& wanted = pieces_.of(row.row, rows_.host(row.row).generation);
      if (wanted.flags != 0) {
        const int64_t count = num_wanted(row, wanted);
        const int64_t end_tok = first_tok + row.num_tokens;
        copy(stream, batch.hidden.rows(end_tok - count, count), step.memory, used);
        step.pieces.push_back({row.row, wanted.generation, used, count});
        used += count;
      }
      first_tok += row.num_tokens;
    }
  }

  void on_output(ModelRunnerOutput& output) override {
    const StatePieces::Step& step = pieces_.take_step();
    for (const Piece& piece : step.pieces) {
      WantedStates& wanted = pieces_.of(piece.row, piece.generation);
      if (wanted.flags != 0 && wanted.generation == piece.generation) {
        add_piece(step.memory, piece, wanted);
      }
    }
    for (RowOutput& row : output.rows) {
      WantedStates& wanted = pieces_.of(row.row, row.generation);
      if (wanted.flags == 0 || wanted.generation != row.generation) {
        continue;
      }
      // Rejected drafts yield nothing. A withheld row computes its tokens again, and then their hidden states come
      // too.
      wanted.values.resize(wanted.values.size() -
                           static_cast<size_t>(row.num_rejected * step.memory.width));
      if (row.tokens.count > 0) {
        give_out(step.memory, wanted, row, output);
      }
    }
    pieces_.forget_removed([](WantedStates& wanted) { wanted = {}; });
  }

 private:
  // How many of the row's last tokens in the step: all of them in the prefill, else those with logits.
  [[nodiscard]] int64_t num_wanted(const ScheduledRow& row, const WantedStates& wanted) const {
    const int32_t prefill_len = rows_.host(row.row).prefill_len;
    if ((wanted.flags & SamplingParams::kPromptHidden) != 0 &&
        row.num_computed_tokens < prefill_len) {
      return row.num_tokens;
    }
    return row.num_logits;
  }

  static void copy(Stream& stream, const ActView& hidden, const CopiedStates& to, int64_t at) {
    const ScopedRange range("hidden_states");
    const auto row_bytes = hidden.shape[1] * static_cast<int64_t>(dtype_bytes(hidden.dtype));
    WR_CHECK_EQ(hidden.stride, hidden.shape[1]);
    if (hidden.shape[0] > 0) {
      stream.copy_to_host(
          to.data + at * row_bytes, hidden.data, static_cast<size_t>(hidden.shape[0] * row_bytes));
    }
  }

  static void add_piece(const CopiedStates& from, const Piece& piece, WantedStates& wanted) {
    const auto first = static_cast<size_t>(piece.begin * from.width);
    const auto count = static_cast<size_t>(piece.count * from.width);
    const size_t before = wanted.values.size();
    wanted.values.resize(before + count);
    for (size_t i = 0; i < count; ++i) {
      wanted.values[before + i] =
          from.dtype == DType::kF32
              ? reinterpret_cast<const float*>(from.data)[first + i]
              : bf16_to_f32(reinterpret_cast<const uint16_t*>(from.data)[first + i]);
    }
  }

  static void give_out(const CopiedStates& from,
                       WantedStates& wanted,
                       RowOutput& row,
                       ModelRunnerOutput& output) {
    if (!output.hidden_states) {
      output.hidden_states.emplace();
      output.hidden_states->width = static_cast<int32_t>(from.width);
    }
    RowTensors& out = *output.hidden_states;
    const size_t before = out.num_vectors();
    out.values.insert(out.values.end(), wanted.values.begin(), wanted.values.end());
    row.hidden = {static_cast<int32_t>(before), static_cast<int32_t>(out.num_vectors() - before)};
    wanted.values.clear();
    if (wanted.values.capacity() > static_cast<size_t>(from.width)) {  // free what a prompt needed
      wanted.values.shrink_to_fit();
    }
  }

  const RequestRows& rows_;
  PinnedBuffer memory_;
  StatePieces pieces_;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_hidden_states(const RunnerParts& parts) {
  return std::make_unique<HiddenStates>(parts);
}

}  // namespace warprow
