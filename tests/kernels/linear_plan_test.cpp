// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear_plan.h"

#include "device/cuda_device.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <utility>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr auto kStore = LinearEpilogue::kStore;
constexpr auto kAdd = LinearEpilogue::kAdd;
constexpr auto kSwiGlu = LinearEpilogue::kSwiGlu;

const DeviceFacts& h200() { return *cuda::known_device("h200"); }

LinearShape shape(int32_t n, int32_t k, LinearEpilogue epilogue) {
  LinearShape out;
  out.n = n;
  out.k = k;
  out.epilogue = epilogue;
  return out;
}

// FNV-1a hash over numbers.
class Hash {
 public:
  template <typename... Numbers>
  void mix(Numbers... numbers) {
    ((value_ = (value_ ^ static_cast<uint64_t>(numbers)) * 0x100000001b3ULL), ...);
  }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ULL;
};

void mix_wide_plans(Hash& hash, int32_t n, int32_t k) {
  for (int32_t m = 1; m <= cuda::kMaxSm90GemmRows; ++m) {
    const cuda::Sm90GemmPlan plan = cuda::sm90_gemm_plan(m, n, k, h200().num_sms);
    hash.mix(plan.cols, plan.groups, plan.split, plan.stages);
  }
}

void mix_sm80_plans(Hash& hash, LinearEpilogue epilogue, int32_t n, int32_t k) {
  const float weight = 1.0F;
  for (int32_t m = 1; m <= cuda::kMaxSm80GemmRows; ++m) {
    for (const bool norm : {false, true}) {
      cuda::Sm80GemmArgs args;
      args.m = m;
      args.n = n;
      args.k = k;
      args.epilogue = epilogue;
      args.norm_weight = norm && cuda::sm80_gemm_takes_norm(m, k) ? &weight : nullptr;
      const cuda::Sm80GemmPlan plan = cuda::sm80_gemm_plan(args, h200());
      hash.mix(plan.tile_rows, plan.num_teams, plan.stages, plan.row_groups);
      hash.mix(plan.num_tiles, plan.num_blocks, plan.shared_bytes);
    }
  }
}

// A hash of the plans of an H200 for many products. It was taken when the number of SMs was a constant and other facts came from the
// current device. Change it only after the new plans were measured.
TEST(LinearPlan, OfAnH200AreTheMeasuredOnes) {
  Hash hash;
  for (const LinearEpilogue epilogue : {kStore, kAdd, kSwiGlu}) {
    for (const int32_t n :
         {40,   64,   192,  256,   320,   576,   1024,  1536,  2048,  3072,   4096,
          5120, 6144, 8192, 11008, 12288, 24576, 25152, 28672, 49152, 128256, 151936}) {
      for (const int32_t k :
           {64, 192, 576, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 8192, 12288, 14336, 28672}) {
        hash.mix(cuda::sm90_gemm_leaves_norm(epilogue, n));
        const cuda::OwnRows own = cuda::own_rows(shape(n, k, epilogue), h200());
        hash.mix(own.sm80, own.all);
        mix_wide_plans(hash, n, k);
        mix_sm80_plans(hash, epilogue, n, k);
      }
    }
  }
  EXPECT_EQ(hash.value(), 0xbcb765af21bde30fULL);
}

// The output projections of Qwen3-0.6B and 8B, and the gate and up projection after them.
TEST(LinearPlan, NormsAreHalvedWhereBothProductsAreWide) {
  const RowRange small =
      halved_norm_rows(h200(), shape(1024, 2048, kAdd), shape(6144, 1024, kSwiGlu));
  EXPECT_EQ(small.first, 9);
  EXPECT_EQ(small.last, 128);
  const LinearShape sum = shape(4096, 4096, kAdd);
  const LinearShape gate = shape(24576, 4096, kSwiGlu);
  const RowRange large = halved_norm_rows(h200(), sum, gate);
  EXPECT_FALSE(large.has(16));
  EXPECT_TRUE(large.has(17));
  EXPECT_TRUE(large.has(64));
  EXPECT_FALSE(large.has(65));
  for (int64_t m = 1; m <= 200; ++m) {
    EXPECT_EQ(large.has(m),
              cuda::linear_path(sum, m, h200()) == cuda::LinearPath::kSm90Gemm &&
                  cuda::linear_path(gate, m, h200()) == cuda::LinearPath::kSm90Gemm);
  }
}

TEST(LinearPlan, NoHalvesWithoutTheKernel) {
  const auto none = [](const DeviceFacts& device, const LinearShape& sum) {
    const RowRange rows = halved_norm_rows(device, sum, shape(6144, 1024, kStore));
    for (int64_t m = 1; m <= 300; ++m) {
      if (rows.has(m)) {
        return false;
      }
    }
    return true;
  };
  const LinearShape sum = shape(1024, 2048, kAdd);
  EXPECT_FALSE(none(h200(), sum));
  EXPECT_TRUE(none(DeviceFacts(), sum));  // the facts of a CPU
  DeviceFacts ampere = h200();
  ampere.compute_capability = 80;
  EXPECT_TRUE(none(ampere, sum));
  LinearShape invariant = sum;
  invariant.batch_invariant = true;
  EXPECT_TRUE(none(h200(), invariant));
  EXPECT_TRUE(none(h200(), shape(1000, 2048, kAdd)));  // sums of squares are per 64 columns
  EXPECT_TRUE(none(h200(), shape(1024, 2048, kStore)));
}

TEST(LinearPlan, ABatchInvariantProductHasOneOrderOfSums) {
  const auto invariant = [](int32_t n, int32_t k, LinearEpilogue epilogue) {
    LinearShape out = shape(n, k, epilogue);
    out.y = epilogue == kAdd ? DType::kF32 : DType::kBF16;
    out.batch_invariant = true;
    return out;
  };
  EXPECT_EQ(cuda::invariant_chunks(invariant(1024, 3072, kAdd), h200()), 8);
  EXPECT_EQ(cuda::invariant_chunks(invariant(1024, 1024, kAdd), h200()), 4);  // parts of 256 inputs
  EXPECT_EQ(cuda::invariant_chunks(invariant(2048, 4096, kAdd), h200()), 4);
  EXPECT_EQ(cuda::invariant_chunks(invariant(4096, 12288, kAdd), h200()), 2);
  EXPECT_EQ(cuda::invariant_chunks(invariant(6144, 4096, kStore), h200()), 1);
  EXPECT_EQ(cuda::invariant_chunks(invariant(24576, 4096, kSwiGlu), h200()), 1);
  EXPECT_EQ(cuda::invariant_chunks(invariant(1001, 1024, kStore), h200()), 0);  // unaligned rows
  DeviceFacts ampere = h200();
  ampere.compute_capability = 80;
  EXPECT_EQ(cuda::invariant_chunks(invariant(4096, 4096, kAdd), ampere), 0);
  const LinearShape sum = invariant(1024, 3072, kAdd);
  const LinearShape behind = invariant(6144, 1024, kSwiGlu);
  for (const int64_t m : {1, 16, 128, 129, 384, 385, 8192}) {
    EXPECT_TRUE(halved_norm_rows(h200(), sum, behind).has(m)) << m;
    EXPECT_NE(cuda::linear_path(sum, m, h200()), cuda::LinearPath::kLibrary) << m;
    EXPECT_EQ(cuda::linear_path(invariant(1001, 1024, kStore), m, h200()),
              cuda::LinearPath::kLibrary);
    EXPECT_EQ(cuda::linear_path(sum, m, ampere), cuda::LinearPath::kLibrary);
  }
}

TEST(Sm80GemmPlan, FitsSmallerDevices) {
  for (const int32_t bytes : {99 * 1024, 163 * 1024, 227 * 1024}) {
    DeviceFacts smaller;
    smaller.kind = DeviceKind::kCuda;
    smaller.num_sms = 108;
    smaller.max_shared_bytes = bytes;
    for (const auto& [n, k] : {std::pair{4096, 1024},
                               {1024, 3072},
                               {6144, 1024},
                               {24576, 4096},
                               {4096, 12288},
                               {151936, 4096},
                               {151936, 1024},
                               {576, 1536},
                               {7168, 28672}}) {
      for (int32_t m = 1; m <= 16; ++m) {
        cuda::Sm80GemmArgs args;
        args.m = m;
        args.n = n;
        args.k = k;
        const float weight = 1.0F;
        args.norm_weight = cuda::sm80_gemm_takes_norm(m, k) ? &weight : nullptr;
        const cuda::Sm80GemmPlan plan = cuda::sm80_gemm_plan(args, smaller);
        EXPECT_GE(plan.stages, 1) << n << " x " << k << " rows " << m;
        EXPECT_LE(plan.shared_bytes, static_cast<size_t>(bytes)) << n << " x " << k;
      }
    }
  }
}

}  // namespace
}  // namespace warprow
