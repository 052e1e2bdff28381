// SPDX-License-Identifier: Apache-2.0
#include "runner/features/pooling.h"

#include "base/check.h"
#include "base/dtype.h"
#include "device/range.h"
#include "kernels/pool/mean_rows.h"
#include "models/model.h"
#include "models/pooler.h"
#include "runner/features/step_pieces.h"
#include "runner/rows.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace warprow {
namespace {

// What a row asked for, and what its prompt yielded so far.
struct WantedVector {
  uint32_t generation = 0;
  uint32_t method = 0;         // a flag of SamplingParams::kPooling, or 0
  int32_t num_toks = 0;        // of the sum
  std::vector<double> sum;     // kPoolMean
  std::vector<float> vectors;  // the other methods: hidden states
};

// What a step left in pinned memory, and the rows whose prompts it ended.
struct CopiedVector {
  std::byte* data = nullptr;   // hidden states [max_num_toks, hidden_size]
  float* means = nullptr;      // of the batch's rows [max_num_seqs, hidden_size]
  std::vector<Piece> whole{};  // the rows that need a mean and had all of their prompt in the step
  DType dtype = DType::kF32;
  int64_t width = 0;
  std::vector<RowId> ended{};

  [[nodiscard]] float value(int64_t index) const {
    return dtype == DType::kF32 ? reinterpret_cast<const float*>(data)[index]
                                : bf16_to_f32(reinterpret_cast<const uint16_t*>(data)[index]);
  }
};
using VectorPieces = StepPieces<CopiedVector, WantedVector>;

// Owns: the ring and the rows' sums.
class Pooling final : public RunnerFeature {
 public:
  Pooling(const RunnerParts& parts, const Pooler& pooler)
      : rows_(*parts.rows),
        pooler_(pooler),
        pieces_(parts.limits.max_steps_in_flight, parts.limits.max_num_seqs) {
    const size_t step_bytes = static_cast<size_t>(parts.limits.max_num_toks) *
                              static_cast<size_t>(parts.model->facts().hidden_size) *
                              dtype_bytes(parts.model->facts().act_dtype);
    const size_t mean_bytes = static_cast<size_t>(parts.limits.max_num_seqs) *
                              static_cast<size_t>(parts.model->facts().hidden_size) * sizeof(float);
    memory_ = parts.device->make_pinned(pieces_.steps().size() * (step_bytes + mean_bytes));
    std::byte* data = memory_.data();
    for (VectorPieces::Step& step : pieces_.steps()) {
      step.memory.means = reinterpret_cast<float*>(data);
      step.memory.data = data + mean_bytes;
      data += mean_bytes + step_bytes;
    }
  }

  void on_row_added(const NewRow& row,
                    const SchedulerOutput& /*step*/,
                    StagedWrites& /*staged*/) override {
    WantedVector& wanted = pieces_.of(row.row, row.generation);
    wanted = {};
    wanted.generation = row.generation;
    wanted.method = row.params.flags & SamplingParams::kPooling;
  }

  void on_row_removed(RowId row) override {
    const uint32_t generation = rows_.host(row).generation;
    if (pieces_.of(row, generation).method != 0) {
      pieces_.remove(row, generation);
    }
  }

  void vote(StepVote& vote) override {
    ending_.clear();
    for (ScheduledRow& row : vote.rows) {
      if (of(row).method != 0 && row.num_logits > 0) {
        row.num_logits = 0;
        ending_.push_back(row.row);
      }
    }
  }

  void after_forward(Stream& stream, const InputBatch& batch) override {
    VectorPieces::Step& step = pieces_.begin_step();
    step.memory.dtype = batch.hidden.dtype;
    step.memory.width = batch.hidden.shape[1];
    step.memory.ended = ending_;
    step.memory.whole.clear();
    int64_t first_tok = 0;
    int64_t used = 0;
    int64_t index = -1;
    for (const ScheduledRow& row : batch.rows) {
      ++index;
      const WantedVector& wanted = of(row);
      const Piece piece = wanted_piece(row, wanted, first_tok);
      if (wanted.method == SamplingParams::kPoolMean && row.num_computed_tokens == 0 && ends(row)) {
        step.memory.whole.push_back({row.row, wanted.generation, index, row.num_tokens});
      } else if (piece.count > 0) {
        copy(stream, batch.hidden.rows(piece.begin, piece.count), step.memory, used);
        step.pieces.push_back({row.row, wanted.generation, used, piece.count});
        used += piece.count;
      }
      first_tok += row.num_tokens;
    }
    if (!step.memory.whole.empty()) {
      mean_rows(stream,
                {batch.hidden,
                 make_view(batch.device.query_start_loc, index + 2),
                 make_view(step.memory.means, index + 1, step.memory.width)});
    }
  }

  void on_output(ModelRunnerOutput& output) override {
    const VectorPieces::Step& step = pieces_.take_step();
    for (const Piece& piece : step.pieces) {
      WantedVector& wanted = pieces_.of(piece.row, piece.generation);
      if (wanted.method != 0 && wanted.generation == piece.generation) {
        add_piece(step.memory, piece, wanted);
      }
    }
    for (const Piece& piece : step.memory.whole) {
      WantedVector& wanted = pieces_.of(piece.row, piece.generation);
      if (wanted.method != 0 && wanted.generation == piece.generation) {
        const float* mean = step.memory.means + piece.begin * step.memory.width;
        wanted.vectors.assign(mean, mean + step.memory.width);
      }
    }
    for (RowOutput& row : output.rows) {
      WantedVector& wanted = pieces_.of(row.row, row.generation);
      const bool ended = std::ranges::find(step.memory.ended, row.row) != step.memory.ended.end();
      if (ended && wanted.method != 0 && wanted.generation == row.generation) {
        give_out(step.memory.width, wanted, row, output);
      }
    }
    pieces_.forget_removed([](WantedVector& wanted) { wanted = {}; });
  }

 private:
  [[nodiscard]] const WantedVector& of(const ScheduledRow& row) {
    return pieces_.of(row.row, rows_.host(row.row).generation);
  }

  // Whether the step ends the row's prompt.
  [[nodiscard]] bool ends(const ScheduledRow& row) const {
    return std::ranges::find(ending_, row.row) != ending_.end();
  }

  // The tokens of the step whose hidden states the row needs: begin counts in the step's tokens.
  [[nodiscard]] Piece wanted_piece(const ScheduledRow& row,
                                   const WantedVector& wanted,
                                   int64_t first_tok) const {
    switch (wanted.method) {
      case SamplingParams::kPoolLast:
        return {row.row, 0, first_tok + row.num_tokens - 1, ends(row) ? 1 : 0};
      case SamplingParams::kPoolFirst:
        return {row.row, 0, first_tok, row.num_computed_tokens == 0 ? 1 : 0};
      case SamplingParams::kPoolMean:
      case SamplingParams::kPoolAll:
        return {row.row, 0, first_tok, row.num_tokens};
      default:
        return {};
    }
  }

  static void copy(Stream& stream, const ActView& hidden, const CopiedVector& to, int64_t at) {
    const ScopedRange range("pooling");
    const auto row_bytes = hidden.shape[1] * static_cast<int64_t>(dtype_bytes(hidden.dtype));
    WR_CHECK_EQ(hidden.stride, hidden.shape[1]);
    stream.copy_to_host(
        to.data + at * row_bytes, hidden.data, static_cast<size_t>(hidden.shape[0] * row_bytes));
  }

  static void add_piece(const CopiedVector& from, const Piece& piece, WantedVector& wanted) {
    const int64_t first = piece.begin * from.width;
    const int64_t count = piece.count * from.width;
    if (wanted.method == SamplingParams::kPoolMean) {
      wanted.sum.resize(static_cast<size_t>(from.width));
      for (int64_t i = 0; i < count; ++i) {
        wanted.sum[static_cast<size_t>(i % from.width)] += double{from.value(first + i)};
      }
      wanted.num_toks += static_cast<int32_t>(piece.count);
      return;
    }
    wanted.vectors.reserve(wanted.vectors.size() + static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      wanted.vectors.push_back(from.value(first + i));
    }
  }

  void give_out(int64_t width,
                WantedVector& wanted,
                RowOutput& row,
                ModelRunnerOutput& output) const {
    if (wanted.method == SamplingParams::kPoolMean && wanted.vectors.empty()) {
      for (const double sum : wanted.sum) {
        wanted.vectors.push_back(static_cast<float>(sum / wanted.num_toks));
      }
    }
    if (!output.pooled) {
      output.pooled.emplace();
      output.pooled->width = pooler_.facts.width;
    }
    RowTensors& out = *output.pooled;
    const size_t before = out.num_vectors();
    std::vector<float> vector;
    for (auto at = wanted.vectors.begin(); at != wanted.vectors.end(); at += width) {
      vector.assign(at, at + width);
      pooler_.apply(vector);
      out.values.insert(out.values.end(), vector.begin(), vector.end());
    }
    row.kind = RowResult::kPooled;
    row.pooled = {static_cast<int32_t>(before), static_cast<int32_t>(out.num_vectors() - before)};
    wanted.vectors = {};
    wanted.sum = {};
  }

  const RequestRows& rows_;
  const Pooler& pooler_;
  PinnedBuffer memory_;
  VectorPieces pieces_;
  std::vector<RowId> ending_;  // of the step being submitted
};

}  // namespace

std::unique_ptr<RunnerFeature> make_pooling(const RunnerParts& parts, const Pooler& pooler) {
  return std::make_unique<Pooling>(parts, pooler);
}

}  // namespace warprow
