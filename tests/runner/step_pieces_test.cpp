// SPDX-License-Identifier: Apache-2.0
#include "runner/features/step_pieces.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

struct Kept {
  uint32_t generation = 0;
  std::vector<float> values;
};
using Pieces = StepPieces<int, Kept>;

constexpr RowId kRow{1};

Kept& keep(Pieces& pieces, uint32_t generation) {
  Kept& kept = pieces.of(kRow, generation);
  kept = {generation, std::vector<float>(100)};
  return kept;
}

void forget_removed(Pieces& pieces) {
  pieces.forget_removed([](Kept& kept) { kept = {}; });
}

TEST(StepPieces, ARowTakenBackIsForgottenWithItsLastStep) {
  Pieces pieces(2, 4);
  const Kept& kept = keep(pieces, 7);
  pieces.begin_step();
  pieces.begin_step();
  pieces.remove(kRow, 7);
  pieces.take_step();
  forget_removed(pieces);
  EXPECT_EQ(kept.values.size(), 100U) << "a step is in flight";
  pieces.begin_step();  // the row is not in this step
  pieces.take_step();
  forget_removed(pieces);
  EXPECT_EQ(kept.values.capacity(), 0U);
}

TEST(StepPieces, ARowGivenOutAgainIsAnothers) {
  Pieces pieces(1, 4);
  pieces.begin_step();
  pieces.remove(kRow, 7);
  const Kept& kept = keep(pieces, 8);
  pieces.take_step();
  forget_removed(pieces);
  EXPECT_EQ(kept.values.size(), 100U);
}

}  // namespace
}  // namespace warprow
