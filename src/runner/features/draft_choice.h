// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/stream.h"
#include "device/view.h"
#include "models/vocab_part.h"
#include "runner/features/runner_parts.h"
#include "runner/logits_head.h"

#include <cstdint>

namespace warprow {

// The tokens that a drafter yields logits of.
struct DraftVocab {
  int64_t size = 0;
  VocabPart part;                // of this rank's head
  bool divided = false;          // over the model's ranks; else every rank has the whole head
  const int32_t* ids = nullptr;  // dev i32 [size]  the model's ids; null: they are the same
};

// Makes drafts from a drafter's logits: the most likely tokens, or drawn ones where drafts are verified by ratio. With
// several ranks, each has complete logits of its share of the rows, as in the sampler. Every rank then receives the tokens
// that each has chosen for its share, so that all have the same drafts. Drawn drafts need the distributions on every rank.
// There the logits of all rows are gathered, and every rank draws from the same ones.
//
// Owns: nothing; its arrays lie in the workspace arena.
// Thread: the runner's.
class DraftChoice {
 public:
  DraftChoice(const RunnerParts& parts, const DraftVocab& vocab);

  // Makes the `made`-th drafts of the rows idx_mapping [n]; -1: none. compute(first, logits) enqueues the drafter's logits of
  // the rows from `first` on, as many as the view has: all columns, or of a divided head the rank's.
  template <typename Compute>
  void make(Stream& stream, int32_t n, const int32_t* idx_mapping, int32_t made, Compute compute) {
    const LogitsShare share = logits_.share_of(n, vocab_.size);
    if (vocab_.divided) {
      const View<float, 2> columns = logits_.columns_of(n, vocab_.part.width);
      compute(int64_t{0}, columns);
      ranks_.comm->exchange_columns(stream, columns, share.rows);
    } else if (share.rows.shape[0] > 0) {
      compute(share.first, share.rows);
    }
    choose(stream, share, idx_mapping, made);
  }

 private:
  void choose(Stream& stream, const LogitsShare& share, const int32_t* idx_mapping, int32_t made);

  RankGroup ranks_;
  DraftVocab vocab_;
  const LogitsHead& logits_;
  const Sampler& sampler_;
  const RequestRows& rows_;
  RunnerOps& ops_;
  // Of several ranks, with room for equal shares of max_num_seqs rows:
  int32_t* chosen_ = nullptr;  // dev i32 [rows]
  float* gathered_ = nullptr;  // dev f32 [rows, size]  where drafts are drawn
};

}  // namespace warprow
