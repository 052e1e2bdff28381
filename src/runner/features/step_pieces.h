// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace warprow {

// What a step yielded for a row: `count` results from `begin` on in the step's memory.
struct Piece {
  RowId row = kNoRow;
  uint32_t generation = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// The bookkeeping of a feature whose results for a request come in pieces, step by step: the pieces of each step in
// flight, and what is kept for each row.
//
// Memory: where a step's results lie. Kept: what a row asked for and has so far; it has a `generation`.
// Invariant: a step's entry is reused only after its output was taken.
template <typename Memory, typename Kept>
class StepPieces {
 public:
  struct Step {
    Memory memory;
    std::vector<Piece> pieces;
  };

  StepPieces(int32_t num_steps_in_flight, int32_t max_num_seqs)
      : steps_(static_cast<size_t>(num_steps_in_flight)),
        kept_(static_cast<size_t>(max_num_seqs) * steps_.size()) {}

  [[nodiscard]] std::vector<Step>& steps() { return steps_; }

  // The entry of a new step, without pieces.
  Step& begin_step() {
    Step& step = steps_[num_begun_++ % steps_.size()];
    step.pieces.clear();
    return step;
  }
  // The entry of the oldest step whose output was not taken yet.
  const Step& take_step() { return steps_[num_taken_++ % steps_.size()]; }

  [[nodiscard]] Kept& of(RowId row, uint32_t generation) {
    return kept_[static_cast<size_t>(index_of(row)) * steps_.size() + generation % steps_.size()];
  }

  // The row was released; steps in flight may still yield results for it.
  void remove(RowId row, uint32_t generation) { leaving_.push_back({row, generation, num_begun_}); }
  // Calls forget(Kept&) for the released rows that no step in flight uses any more.
  template <typename Forget>
  void forget_removed(Forget forget) {
    std::erase_if(leaving_, [&](const Leaving& leaving) {
      if (leaving.num_begun > num_taken_) {
        return false;
      }
      Kept& kept = of(leaving.row, leaving.generation);
      if (kept.generation == leaving.generation) {
        forget(kept);
      }
      return true;
    });
  }

 private:
  struct Leaving {
    RowId row;
    uint32_t generation;
    uint64_t num_begun;  // at its release
  };

  std::vector<Step> steps_;
  // [max_num_seqs, steps in flight]  by generation: a row's last owner may have a step in flight
  std::vector<Kept> kept_;
  std::vector<Leaving> leaving_;
  uint64_t num_begun_ = 0;
  uint64_t num_taken_ = 0;
};

}  // namespace warprow
