// SPDX-License-Identifier: Apache-2.0
#include "runner/features/prompt_logprobs.h"

#include "base/check.h"
#include "device/range.h"
#include "runner/features/step_pieces.h"
#include "runner/logits_head.h"
#include "runner/output_ring.h"
#include "runner/rows.h"
#include "runner/sample/sampler.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace warprow {
namespace {

constexpr int32_t kMaxTop = Sampler::kMaxPromptTop;

// A row's results so far; `top` spans point into its own lists.
struct Gathered {
  uint32_t generation = 0;
  int32_t num_top = -1;  // -1: none requested
  int32_t prompt_len = 0;
  std::vector<TokenLogprobs> entries;
  std::vector<TokenId> top_ids;
  std::vector<float> top_logprobs;

  [[nodiscard]] bool complete() const {
    return static_cast<int32_t>(entries.size()) == prompt_len - 1;
  }
};

// Where a step's results lie: SampledArrays of [max_num_toks], [max_num_toks, kMaxTop].
using Pieces = StepPieces<SampledArrays, Gathered>;

// Owns: the ring and the rows' results.
class PromptLogprobs final : public RunnerFeature {
 public:
  explicit PromptLogprobs(const RunnerParts& parts)
      : head_(*parts.head),
        sampler_(*parts.sampler),
        rows_(*parts.rows),
        pieces_(parts.limits.max_steps_in_flight, parts.limits.max_num_seqs) {
    const int32_t max_toks = parts.limits.max_num_toks;
    const int64_t step_bytes = sampled_arrays_bytes(max_toks, max_toks, kMaxTop);
    memory_ = parts.device->make_pinned(pieces_.steps().size() * static_cast<size_t>(step_bytes));
    std::byte* base = memory_.data();
    for (Pieces::Step& step : pieces_.steps()) {
      step.memory = sampled_arrays_at(base, max_toks, max_toks, kMaxTop);
      base += step_bytes;
    }
  }

  void on_row_added(const NewRow& row,
                    const SchedulerOutput& /*step*/,
                    StagedWrites& /*staged*/) override {
    Gathered& mine = pieces_.of(row.row, row.generation);
    forget(mine);
    mine.generation = row.generation;
    mine.num_top = row.params.num_prompt_logprobs;
    mine.prompt_len = row.prompt_len;
    num_wanted_ += mine.num_top >= 0 ? 1 : 0;
  }

  void on_row_removed(RowId row) override {
    const uint32_t generation = rows_.host(row).generation;
    if (pieces_.of(row, generation).num_top >= 0) {
      pieces_.remove(row, generation);
    }
  }

  void after_sample(Stream& stream, const InputBatch& batch) override {
    Pieces::Step& step = pieces_.begin_step();
    if (num_wanted_ == 0) {
      return;
    }
    int32_t first_tok = 0;
    int32_t used = 0;
    for (const ScheduledRow& row : batch.rows) {
      const Gathered& mine = pieces_.of(row.row, rows_.host(row.row).generation);
      // The logits of a token predict the next one; the logits of the last prompt token go to the sampler.
      const int32_t end = std::min(row.num_computed_tokens + row.num_tokens, mine.prompt_len - 1);
      for (int32_t at = row.num_computed_tokens; mine.num_top >= 0 && at < end;) {
        const ScopedRange range("prompt_logprobs");
        const std::span<const TokenId> next = rows_.store().prefill_run(row.row, at + 1, end - at);
        const auto count = static_cast<int32_t>(next.size());
        report(stream,
               batch.hidden.rows(first_tok + at - row.num_computed_tokens, count),
               next.data(),
               mine.num_top,
               from_result(step.memory, used));
        step.pieces.push_back({row.row, mine.generation, used, count});
        used += count;
        at += count;
      }
      first_tok += row.num_tokens;
    }
  }

  void on_output(ModelRunnerOutput& output) override {
    const Pieces::Step& step = pieces_.take_step();
    if (num_wanted_ > 0) {
      read(step, output);
    }
    pieces_.forget_removed([this](Gathered& mine) { forget(mine); });
  }

 private:
  void read(const Pieces::Step& step, ModelRunnerOutput& output) {
    for (const Piece& piece : step.pieces) {
      Gathered& mine = pieces_.of(piece.row, piece.generation);
      if (mine.num_top >= 0 && mine.generation == piece.generation) {
        add_piece(step.memory, piece, mine);
      }
    }
    for (RowOutput& row : output.rows) {
      Gathered& mine = pieces_.of(row.row, row.generation);
      const bool ends_prompt = row.tokens.count > 0 || row.failure != RowFailure::kNone;
      if (mine.num_top >= 0 && mine.generation == row.generation && ends_prompt) {
        give_out(mine, row, output);
      }
    }
  }

  // The arrays from result `first` on.
  static SampledArrays from_result(const SampledArrays& arrays, int32_t first) {
    SampledArrays part = at_entry(arrays, first);
    part.top_ids = arrays.top_ids + static_cast<int64_t>(first) * kMaxTop;
    part.top_logprobs = arrays.top_logprobs + static_cast<int64_t>(first) * kMaxTop;
    return part;
  }

  // hidden: of consecutive tokens; next: the token after each of them.
  void report(Stream& stream,
              const ActView& hidden,
              const TokenId* next,
              int32_t num_top,
              const SampledArrays& to) const {
    const auto count = static_cast<int32_t>(hidden.shape[0]);
    for (int32_t at = 0; at < count; at += head_.max_rows()) {
      const int32_t n = std::min(head_.max_rows(), count - at);
      const LogitsShare logits = head_.of_all(stream, hidden.rows(at, n));
      sampler_.report(stream, logits, make_view(next + at, n), num_top, from_result(to, at));
    }
  }

  static void add_piece(const SampledArrays& arrays, const Piece& piece, Gathered& mine) {
    for (int64_t i = piece.begin; i < piece.begin + piece.count; ++i) {
      TokenLogprobs entry{arrays.logprob[i], arrays.rank[i], {}};
      if (arrays.tokens[i] < 0) {
        entry.logprob = std::numeric_limits<float>::quiet_NaN();
      }
      entry.top.begin = static_cast<int32_t>(mine.top_ids.size());
      for (int64_t t = i * kMaxTop; t < i * kMaxTop + mine.num_top && arrays.top_ids[t] >= 0; ++t) {
        mine.top_ids.push_back(arrays.top_ids[t]);
        mine.top_logprobs.push_back(arrays.top_logprobs[t]);
        ++entry.top.count;
      }
      mine.entries.push_back(entry);
    }
  }

  void forget(Gathered& mine) {
    num_wanted_ -= mine.num_top >= 0 ? 1 : 0;
    mine = {};
  }

  void give_out(Gathered& mine, RowOutput& row, ModelRunnerOutput& output) {
    WR_CHECK(mine.complete(),
             "{} of {} prompt tokens have logprobs",
             mine.entries.size(),
             mine.prompt_len - 1);
    const auto base = static_cast<int32_t>(output.top_ids.size());
    row.prompt_logprobs = {static_cast<int32_t>(output.prompt_logprobs.size()),
                           static_cast<int32_t>(mine.entries.size())};
    for (TokenLogprobs entry : mine.entries) {
      entry.top.begin += base;
      output.prompt_logprobs.push_back(entry);
    }
    output.top_ids.insert(output.top_ids.end(), mine.top_ids.begin(), mine.top_ids.end());
    output.top_logprobs.insert(
        output.top_logprobs.end(), mine.top_logprobs.begin(), mine.top_logprobs.end());
    forget(mine);
  }

  LogitsHead& head_;
  const Sampler& sampler_;
  const RequestRows& rows_;
  PinnedBuffer memory_;
  Pieces pieces_;
  int32_t num_wanted_ = 0;  // rows that ask; at 0 a step skips the scan of its rows
};

}  // namespace

std::unique_ptr<RunnerFeature> make_prompt_logprobs(const RunnerParts& parts) {
  return std::make_unique<PromptLogprobs>(parts);
}

}  // namespace warprow
