// SPDX-License-Identifier: Apache-2.0
// Products of low rank on CUDA against their reference, and rows of a batch against the same rows alone.
#include "kernels/low_rank/low_rank.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/low_rank_case.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;
using testing::low_rank_cases;
using testing::LowRankCase;
using testing::Tolerance;

// In bf16, x times the norm's weight and the sums between the halves are rounded: both have about 64 values of size 1.
constexpr Tolerance kTiles{0.0, 0.06};
constexpr Tolerance kTilesStored{1.02 / 256, 0.06};
constexpr Tolerance kGated{0.02, 0.15};

class LowRankCuda : public CudaTest {
 protected:
  void expect_agrees(const LowRankCase& c, Tolerance tolerance) {
    arena().reset();
    ArenaMemory mem = memory();
    const LowRankCase::Args args = c.args(mem);
    args.run(stream());
    stream().synchronize();
    expect_elements(args.result(), c.reference(), tolerance);
  }

  void expect_same_alone(const LowRankCase& c) {
    arena().reset();
    ArenaMemory mem = memory();
    const LowRankCase::Args all = c.args(mem);
    all.run(stream());
    const std::vector<float> together = download_act(all.result());
    for (size_t row = 0; row < c.rows.size(); ++row) {
      LowRankCase one = c;
      one.rows = {c.rows[row]};
      one.num_padding_toks = 0;
      const auto at = static_cast<int32_t>(row);
      const LowRankCase::Args args =
          one.args(mem, c.slice(c.x(), at, c.k), c.slice(c.y(), at, c.width()));
      args.run(stream());
      ASSERT_EQ(download_act(args.result()), c.slice(together, at, all.result().shape[1]))
          << "row " << row;
    }
  }
};

TEST_F(LowRankCuda, Float32) {
  for (const LowRankCase& c : low_rank_cases(DType::kF32)) {
    SCOPED_TRACE(c.k);
    expect_agrees(c, {5e-5, 5e-5});
    expect_same_alone(c);
  }
}

TEST_F(LowRankCuda, Tiles) {
  for (LowRankCase c : low_rank_cases(DType::kBF16)) {
    SCOPED_TRACE(c.k);
    expect_agrees(c, c.gated ? kGated : kTiles);
    expect_same_alone(c);
    if (!c.gated) {
      c.y_type = DType::kBF16;
      expect_agrees(c, kTilesStored);
      expect_same_alone(c);
    }
  }
}

}  // namespace
}  // namespace warprow
