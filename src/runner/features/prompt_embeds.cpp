// SPDX-License-Identifier: Apache-2.0
#include "runner/features/prompt_embeds.h"

#include "base/check.h"
#include "base/dtype.h"
#include "models/model.h"

#include <algorithm>
#include <vector>

namespace warprow {
namespace {

// Vectors [first, first + count) as float32.
std::vector<float> read_vectors(const EmbeddingVectors& from, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count * from.width));
  const auto begin = static_cast<size_t>(first * from.width);
  const auto* halves = reinterpret_cast<const uint16_t*>(from.bytes.data()) + begin;
  switch (from.dtype) {
    case DType::kF32:
      std::copy_n(
          reinterpret_cast<const float*>(from.bytes.data()) + begin, values.size(), values.begin());
      break;
    case DType::kF16:
      std::transform(halves, halves + values.size(), values.begin(), f16_to_f32);
      break;
    case DType::kBF16:
      std::transform(halves, halves + values.size(), values.begin(), bf16_to_f32);
      break;
    default:
      WR_CHECK(false, "embeddings of a type that the wire does not have");
  }
  return values;
}

// Owns: the rows' vectors and the ring.
class PromptEmbeds final : public RunnerFeature {
 public:
  explicit PromptEmbeds(const RunnerParts& parts)
      : hidden_size_(parts.model->facts().hidden_size),
        rows_(static_cast<size_t>(parts.limits.max_num_seqs)) {
    const int64_t max_toks = parts.limits.max_num_toks;
    embeddings_ = make_view(
        parts.arenas.state->alloc<float>(max_toks * hidden_size_), max_toks, hidden_size_);
    parts.inputs->embeddings = embeddings_;
    const auto bytes = static_cast<size_t>(max_toks * hidden_size_) * sizeof(float);
    for (int32_t i = 0; i < parts.limits.max_steps_in_flight; ++i) {
      ring_.push_back(parts.device->make_pinned(bytes));
    }
  }

  void on_row_added(const NewRow& row,
                    const SchedulerOutput& step,
                    StagedWrites& /*staged*/) override {
    if (row.embeds.count == 0) {
      return;
    }
    WR_CHECK_EQ(step.embeddings.width, hidden_size_);
    of(row.row) = read_vectors(step.embeddings, row.embeds.begin, row.embeds.count);
    ++num_rows_;
  }

  void on_row_removed(RowId row) override {
    num_rows_ -= of(row).empty() ? 0 : 1;
    of(row) = {};
  }

  // The entry is free: fewer steps are in flight than the ring has entries.
  void before_forward(Stream& stream, const InputBatch& batch) override {
    auto* const staged = ring_[num_steps_++ % ring_.size()].as<float>();
    if (num_rows_ == 0) {
      return;
    }
    int64_t tok = 0;
    for (const ScheduledRow& row : batch.rows) {
      const std::vector<float>& vectors = of(row.row);
      const auto num_vectors = static_cast<int64_t>(vectors.size()) / hidden_size_;
      const int64_t first = row.num_computed_tokens;
      const int64_t count = std::min<int64_t>(row.num_tokens, num_vectors - first);
      if (count > 0) {
        const auto num_values = static_cast<size_t>(count * hidden_size_);
        float* from = staged + tok * hidden_size_;
        std::copy_n(vectors.begin() + first * hidden_size_, num_values, from);
        stream.copy_to_device(embeddings_.row(tok), from, num_values * sizeof(float));
      }
      tok += row.num_tokens;
    }
  }

 private:
  std::vector<float>& of(RowId row) { return rows_[static_cast<size_t>(index_of(row))]; }

  int64_t hidden_size_;
  View<float, 2> embeddings_;             // dev f32 [max_num_toks, hidden_size]
  std::vector<PinnedBuffer> ring_;        // f32 [max_num_toks, hidden_size] each
  std::vector<std::vector<float>> rows_;  // [max_num_seqs] [prompt_len, hidden_size]; empty: ids
  int32_t num_rows_ = 0;                  // rows that have vectors
  size_t num_steps_ = 0;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_prompt_embeds(const RunnerParts& parts) {
  return std::make_unique<PromptEmbeds>(parts);
}

}  // namespace warprow
