// SPDX-License-Identifier: Apache-2.0
#include "runner/features/prompt_embeds.h"

#include "base/check.h"
#include "models/model.h"

#include <algorithm>
#include <span>
#include <vector>

namespace warprow {
namespace {

// Neighbouring places of a prompt that have vectors.
struct VectorRun {
  int32_t position = 0;  // of the first one in the prompt
  int32_t first = 0;     // its vector among those of the row
  int32_t count = 0;
};

struct RowVectors {
  std::vector<float> values;    // [num_vectors, hidden_size]
  std::vector<VectorRun> runs;  // by position; empty: all tokens have ids
};

std::vector<VectorRun> runs_of(std::span<const TokenId> tokens) {
  std::vector<VectorRun> runs;
  int32_t num_vectors = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0) {
      continue;
    }
    if (i == 0 || tokens[i - 1] >= 0) {
      runs.push_back({static_cast<int32_t>(i), num_vectors, 0});
    }
    ++runs.back().count;
    ++num_vectors;
  }
  return runs;
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
    const auto begin = step.embeddings.values.begin() + row.embeds.begin * hidden_size_;
    RowVectors& mine = of(row.row);
    mine.values.assign(begin, begin + row.embeds.count * hidden_size_);
    mine.runs = runs_of(slice(step.token_ids, row.tokens));
    ++num_rows_;
  }

  void on_row_removed(RowId row) override {
    num_rows_ -= of(row).runs.empty() ? 0 : 1;
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
      for (const VectorRun& run : of(row.row).runs) {
        const int32_t begin = std::max(run.position, row.num_computed_tokens);
        const int32_t end =
            std::min(run.position + run.count, row.num_computed_tokens + row.num_tokens);
        if (begin < end) {
          copy(stream,
               of(row.row).values.data() + (run.first + begin - run.position) * hidden_size_,
               end - begin,
               tok + begin - row.num_computed_tokens,
               staged);
        }
      }
      tok += row.num_tokens;
    }
  }

 private:
  RowVectors& of(RowId row) { return rows_[static_cast<size_t>(index_of(row))]; }

  // Copies vectors to those of the step, from token `tok` on.
  void copy(Stream& stream, const float* from, int64_t count, int64_t tok, float* staged) {
    const auto num_values = static_cast<size_t>(count * hidden_size_);
    float* const place = staged + tok * hidden_size_;
    std::copy_n(from, num_values, place);
    stream.copy_to_device(embeddings_.row(tok), place, num_values * sizeof(float));
  }

  int64_t hidden_size_;
  View<float, 2> embeddings_;       // dev f32 [max_num_toks, hidden_size]
  std::vector<PinnedBuffer> ring_;  // f32 [max_num_toks, hidden_size] each
  std::vector<RowVectors> rows_;    // [max_num_seqs]
  int32_t num_rows_ = 0;            // rows that have vectors
  size_t num_steps_ = 0;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_prompt_embeds(const RunnerParts& parts) {
  return std::make_unique<PromptEmbeds>(parts);
}

}  // namespace warprow
