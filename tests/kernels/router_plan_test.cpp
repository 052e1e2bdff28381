// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/router_plan.h"

#include "device/cuda_device.h"
#include "kernels/experts/route_experts.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

LinearShape router(int32_t num_experts, int32_t k) {
  LinearShape shape;
  shape.n = num_experts;
  shape.k = k;
  shape.y = DType::kF32;
  shape.batch_invariant = true;
  return shape;
}

TEST(RouterPlan, TakesRoutersOfFewRowsOnHopper) {
  const DeviceFacts& h200 = *cuda::known_device("h200");
  for (const int64_t rows : {1, 8, 9, 32}) {
    EXPECT_TRUE(routes_with_product(h200, router(32, 2880), rows, 4, 1)) << "gpt-oss";
    EXPECT_TRUE(routes_with_product(h200, router(128, 2048), rows, 8, 1)) << "Qwen3-30B-A3B";
    EXPECT_TRUE(routes_with_product(h200, router(8, 4096), rows, 2, 1)) << "Mixtral";
  }
  EXPECT_FALSE(routes_with_product(h200, router(128, 2048), 33, 8, 1));
  EXPECT_FALSE(routes_with_product(h200, router(512, 2048), 1, 10, 1)) << "too many experts";
  EXPECT_FALSE(routes_with_product(h200, router(256, 7168), 1, 8, 1)) << "too much memory";
  EXPECT_FALSE(routes_with_product(h200, router(64, 2048), 1, 6, 8)) << "groups";
  EXPECT_FALSE(routes_with_product(h200, router(128, 2056), 1, 8, 1)) << "k";
  EXPECT_FALSE(routes_with_product(h200, router(30, 2048), 1, 4, 1)) << "rows of logits";
  LinearShape quantised = router(128, 2048);
  quantised.weights = PackedKind::kF8;
  EXPECT_FALSE(routes_with_product(h200, quantised, 1, 8, 1));
  DeviceFacts other = h200;
  other.compute_capability = 80;
  EXPECT_FALSE(routes_with_product(other, router(128, 2048), 1, 8, 1));
  other.kind = DeviceKind::kCpu;
  EXPECT_FALSE(routes_with_product(other, router(128, 2048), 1, 8, 1));
}

TEST(RouterPlan, CtasHaveAllExpertsAndInputs) {
  for (const int32_t num_experts : {8, 16, 32, 60, 128, 256}) {
    for (const int32_t parts : {1, 2, 4}) {
      for (const int32_t k : {320, 2048, 2880}) {
        const cuda::RouterPlan plan = cuda::router_plan(17, num_experts, 4, k, parts);
        EXPECT_GE(plan.tiles * 16 * (cuda::kRouterCtas / parts), num_experts);
        EXPECT_GE((plan.pitch - 16) / 2 * parts, k);
        EXPECT_EQ(plan.eights, 3);
        EXPECT_GE(plan.experts, num_experts);
        EXPECT_GE(32 * cuda::router_experts_a_lane(num_experts), num_experts);
        EXPECT_LT(cuda::router_x_at(plan), cuda::router_sums_at(plan));
        EXPECT_LT(cuda::router_sums_at(plan), cuda::router_logits_at(plan));
      }
    }
  }
}

}  // namespace
}  // namespace warprow
