// SPDX-License-Identifier: Apache-2.0
#include "runner/features/draft_choice.h"

#include "runner/ops/runner_ops.h"
#include "runner/rows.h"
#include "runner/sample/sampler.h"

#include <cstddef>

namespace warprow {

DraftChoice::DraftChoice(const RunnerParts& parts, const DraftVocab& vocab)
    : ranks_(parts.tensor),
      vocab_(vocab),
      logits_(*parts.head),
      sampler_(*parts.sampler),
      rows_(*parts.rows),
      ops_(*parts.ops) {
  if (ranks_.alone()) {
    return;
  }
  const int64_t rows = ranks_.place.size * ranks_.place.largest_share(parts.limits.max_num_seqs);
  if (sampler_.draws_drafts()) {
    gathered_ = parts.arenas.workspace->alloc<float>(rows * vocab.size);
  } else {
    chosen_ = parts.arenas.workspace->alloc<int32_t>(rows);
  }
}

void DraftChoice::choose(Stream& stream,
                         const LogitsShare& share,
                         const int32_t* idx_mapping,
                         int32_t made) {
  const auto n = static_cast<int32_t>(share.n);
  const int64_t most = ranks_.place.largest_share(n);
  if (sampler_.draws_drafts()) {
    View<const float, 2> all = share.rows;
    if (!ranks_.alone()) {
      const size_t bytes = static_cast<size_t>(most * vocab_.size) * sizeof(float);
      ranks_.comm->all_gather(stream,
                              reinterpret_cast<const std::byte*>(share.rows.data),
                              reinterpret_cast<std::byte*>(gathered_),
                              bytes);
      all = make_view<const float>(gathered_, n, vocab_.size);
    }
    sampler_.draw_drafts(stream, all, idx_mapping, made, rows_);
    return;
  }
  int32_t* const mine = ranks_.alone() ? nullptr : chosen_ + ranks_.place.rank * most;
  ops_.take_draft(stream,
                  {idx_mapping + share.first,
                   share.rows.data,
                   vocab_.size,
                   rows_.drafts(),
                   made,
                   vocab_.ids,
                   mine},
                  share.rows.shape[0]);
  if (!ranks_.alone()) {
    ranks_.comm->all_gather(stream,
                            reinterpret_cast<const std::byte*>(mine),
                            reinterpret_cast<std::byte*>(chosen_),
                            static_cast<size_t>(most) * sizeof(int32_t));
    ops_.keep_drafts(stream, {idx_mapping, chosen_, rows_.drafts(), made}, n);
  }
}

}  // namespace warprow
