// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/worker_shares.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::cpu {
namespace {

TEST(WorkerShares, EveryItemOnce) {
  for (const int32_t workers : {1, 2, 5, 70}) {
    ComputePool pool(workers);
    for (const int64_t n : {0, 1, 7, 1000}) {
      for (const int64_t grain : {1, 3, 2000}) {
        for (const bool from_last : {false, true}) {
          std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
          const auto count = [&](int64_t begin, int64_t end, int32_t worker) {
            EXPECT_LT(worker, workers);
            for (int64_t i = begin; i < end; ++i) {
              ++hits[static_cast<size_t>(i)];
            }
          };
          parallel_for_with_affinity(pool, n, grain, count, from_last);
          for (const auto& hit : hits) {
            EXPECT_EQ(hit.load(), 1) << workers << " workers, " << n << " items by " << grain;
          }
        }
      }
    }
  }
}

TEST(WorkerShares, AWorkerTakesItsOwnShareFirstAndThenTheOthers) {
  WorkerShares shares(7, 3);  // 0 1, 2 3, 4 5 6
  EXPECT_EQ(shares.take(1), 2);
  EXPECT_EQ(shares.take(0), 0);
  EXPECT_EQ(shares.take(1), 3);
  EXPECT_EQ(shares.take(1), 4);
  EXPECT_EQ(shares.take(2), 5);
  EXPECT_EQ(shares.take(2), 6);
  EXPECT_EQ(shares.take(2), 1);
}

TEST(WorkerShares, FewerPiecesThanWorkers) {
  WorkerShares shares(2, 5);
  std::vector<int64_t> taken{shares.take(4), shares.take(4)};
  std::ranges::sort(taken);
  EXPECT_EQ(taken, (std::vector<int64_t>{0, 1}));
}

}  // namespace
}  // namespace warprow::cpu
