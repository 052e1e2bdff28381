// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear_plan.h"

#include "device/cuda_device.h"
#include "kernels/linear/half_norm.h"
#include "kernels/linear/large_m/sm90_large_gemm.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/linear/small_m/sm90_warp_gemm.h"
#include "kernels/low_rank/low_rank.h"

#include <limits>
#include <tuple>
#include <utility>
#include <vector>

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
  EXPECT_GT(small.first, kMaxQuarteredRows);
  for (int64_t m = 1; m <= 200; ++m) {
    EXPECT_EQ(large.has(m),
              cuda::linear_path(sum, m, h200()) == cuda::LinearPath::kSm90Gemm &&
                  cuda::linear_path(gate, m, h200()) == cuda::LinearPath::kSm90Gemm);
  }
}

TEST(LinearPlan, ProductsOfSomeRowsAddTermsOfLowRank) {
  LinearShape qkv = shape(6144, 4096, kStore);
  qkv.batch_invariant = true;
  LowRankProduct product;
  product.num_parts = 3;
  product.parts[0] = {.n = 4096, .y_col = 0};
  product.parts[1] = {.n = 1024, .y_col = 4096};
  product.parts[2] = {.n = 1024, .y_col = 5120};
  const auto halves = [&](int64_t m, bool reads_x = true) {
    return low_rank_halves(h200(), qkv, m, product, reads_x);
  };
  for (const int64_t m : {1, 5, 6, 8, 9, 32}) {
    EXPECT_EQ(halves(m), LowRankHalves::kBoth) << m;
    EXPECT_EQ(halves(m, false), m < 6 ? LowRankHalves::kNone : LowRankHalves::kSecond)
        << m << ", a norm in front";
  }
  EXPECT_EQ(halves(33), LowRankHalves::kNone);
  product.parts[1].n = 1000;
  EXPECT_EQ(halves(32), LowRankHalves::kNone) << "an odd number of columns";
  product.parts[1].n = 1024;
  qkv.weights = PackedKind::kQ6;
  EXPECT_EQ(halves(32), LowRankHalves::kNone) << "quantised";
  qkv.weights = PackedKind::kBF16;
  DeviceFacts cpu = h200();
  cpu.kind = DeviceKind::kCpu;
  EXPECT_EQ(low_rank_halves(cpu, qkv, 32, product, true), LowRankHalves::kNone);
  qkv.n = 2048;
  EXPECT_EQ(halves(32), LowRankHalves::kSecond) << "short";
  qkv.n = 3 * 24576;
  EXPECT_EQ(halves(32), LowRankHalves::kSecond) << "CTAs that are not all resident";
  // What a term needs of shared memory is taken from the ring.
  for (const int32_t split : {1, 2, 4}) {
    for (const int32_t n : {1024, 6144, 24576}) {
      const cuda::Sm90GemmPlan plan = cuda::sm90_gemm_plan(32, n, 4096, 132, split, true);
      EXPECT_GE(plan.stages, 2);
      EXPECT_LE(cuda::sm90_gemm_shared_bytes(plan),
                static_cast<size_t>(cuda::kSm90GemmSharedBytes));
      EXPECT_GT(cuda::sm90_gemm_shared_bytes(plan),
                static_cast<size_t>(cuda::sm90_gemm_term_at(plan)));
    }
  }
}

// The heads of Qwen3-0.6B and 8B.
TEST(LinearPlan, HeadsLeaveMaxima) {
  for (const int32_t k : {1024, 4096}) {
    LinearShape head = shape(151936, k, kStore);
    head.y = DType::kF32;
    EXPECT_FALSE(leaves_maxima(h200(), head, 64)) << "without batch invariance";
    head.batch_invariant = true;
    EXPECT_FALSE(leaves_maxima(h200(), head, 8));
    for (const int64_t m : {9, 32, 128, 129, 512, 8192}) {
      EXPECT_TRUE(leaves_maxima(h200(), head, m)) << m;
    }
    DeviceFacts cpu = h200();
    cpu.kind = DeviceKind::kCpu;
    EXPECT_FALSE(leaves_maxima(cpu, head, 128));
    head.n += 4;
    EXPECT_FALSE(leaves_maxima(h200(), head, 128)) << "an odd number of outputs";
    head.n -= 4;
    head.has_bias = true;
    EXPECT_FALSE(leaves_maxima(h200(), head, 128)) << "with a bias";
    head.has_bias = false;
    head.weights = PackedKind::kQ6;
    EXPECT_FALSE(leaves_maxima(h200(), head, 128)) << "quantised";
  }
  LinearShape parts = shape(1024, 2048, kStore);
  parts.y = DType::kF32;
  parts.batch_invariant = true;
  EXPECT_FALSE(leaves_maxima(h200(), parts, 128)) << "in parts of k";
}

TEST(LinearPlan, Float32HasOneKernelAndNoHalves) {
  for (const bool batch_invariant : {false, true}) {
    LinearShape sum = shape(1024, 2048, kAdd);
    LinearShape gate = shape(6144, 1024, kSwiGlu);
    sum.batch_invariant = gate.batch_invariant = batch_invariant;
    EXPECT_TRUE(halved_norm_rows(h200(), sum, gate).has(64));
    gate.weights = PackedKind::kF32;
    EXPECT_FALSE(halved_norm_rows(h200(), sum, gate).has(64));
    sum.weights = PackedKind::kF32;
    EXPECT_FALSE(halved_norm_rows(h200(), sum, gate).has(64));
    for (const int64_t m : {1, 16, 17, 200, 8192}) {
      EXPECT_EQ(cuda::linear_path(sum, m, h200()), cuda::LinearPath::kF32Gemm) << m;
    }
  }
}

// A sum over ranks begins the norm wherever the product behind it can end it.
TEST(LinearPlan, ASumOverRanksNeedsTheProductBehindItAlone) {
  LinearShape behind = shape(6144, 1024, kSwiGlu);
  const RowRange some = halved_norm_rows(h200(), behind);
  for (int64_t m = 1; m <= 300; ++m) {
    EXPECT_EQ(some.has(m), cuda::linear_path(behind, m, h200()) == cuda::LinearPath::kSm90Gemm);
  }
  behind.batch_invariant = true;
  for (const int64_t m : {1, 8, 9, 128, 8192}) {
    EXPECT_TRUE(halved_norm_rows(h200(), behind).has(m)) << m;
  }
  behind.k = 1000;
  EXPECT_FALSE(halved_norm_rows(h200(), behind).has(64));
  behind = shape(6144, 1024, kSwiGlu);
  behind.weights = PackedKind::kF32;
  EXPECT_FALSE(halved_norm_rows(h200(), behind).has(64));
  EXPECT_FALSE(halved_norm_rows(DeviceFacts{}, shape(6144, 1024, kSwiGlu)).has(64));
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
  EXPECT_TRUE(none(h200(), shape(1000, 2048, kAdd)));  // sums of squares are per 64 columns
  EXPECT_TRUE(none(h200(), shape(1024, 2048, kStore)));
}

LinearShape invariant(int32_t n, int32_t k, LinearEpilogue epilogue) {
  LinearShape out = shape(n, k, epilogue);
  out.y = epilogue == kAdd ? DType::kF32 : DType::kBF16;
  out.batch_invariant = true;
  return out;
}

TEST(LinearPlan, ABatchInvariantProductHasOneOrderOfSums) {
  const auto chunks = [](int32_t n, int32_t k, LinearEpilogue epilogue) {
    return cuda::invariant_chunks(invariant(n, k, epilogue), h200());
  };
  EXPECT_EQ(chunks(4096, 1024, kStore), 1);  // Qwen3-0.6B
  EXPECT_EQ(chunks(1024, 2048, kAdd), 4);
  EXPECT_EQ(chunks(6144, 1024, kSwiGlu), 1);
  EXPECT_EQ(chunks(1024, 3072, kAdd), 4);
  EXPECT_EQ(chunks(151936, 1024, kStore), 1);
  EXPECT_EQ(chunks(6144, 4096, kStore), 1);  // 8B
  EXPECT_EQ(chunks(4096, 4096, kAdd), 2);
  EXPECT_EQ(chunks(24576, 4096, kSwiGlu), 1);
  EXPECT_EQ(chunks(4096, 12288, kAdd), 2);
  EXPECT_EQ(chunks(1024, 1024, kAdd), 4);  // parts of 256 inputs
  EXPECT_EQ(chunks(2048, 4096, kAdd), 4);
  EXPECT_EQ(chunks(1001, 1024, kStore), 0);  // unaligned rows
  DeviceFacts ampere = h200();
  ampere.compute_capability = 80;
  EXPECT_EQ(cuda::invariant_chunks(invariant(4096, 4096, kAdd), ampere), 0);
  const LinearShape sum = invariant(1024, 3072, kAdd);
  const LinearShape behind = invariant(6144, 1024, kSwiGlu);
  for (const int64_t m : {1, 16, 128, 129, 384, 385, 8192}) {
    EXPECT_TRUE(halved_norm_rows(h200(), sum, behind).has(m)) << m;
    EXPECT_EQ(cuda::linear_path(sum, m, h200()) == cuda::LinearPath::kSm90Warps,
              m <= cuda::kMaxSm90WarpRows);
    EXPECT_NE(cuda::linear_path(invariant(1024, 1000, kAdd), m, h200()),
              cuda::LinearPath::kSm90Warps);  // not whole steps of 64 inputs
    EXPECT_NE(cuda::linear_path(sum, m, h200()), cuda::LinearPath::kLibrary) << m;
    EXPECT_EQ(cuda::linear_path(invariant(1001, 1024, kStore), m, h200()),
              cuda::LinearPath::kLibrary);
    EXPECT_EQ(cuda::linear_path(sum, m, ampere), cuda::LinearPath::kLibrary);
  }
}

TEST(LinearPlan, ManyBatchInvariantRows) {
  const auto in_blocks = [](int32_t n, int32_t k, LinearEpilogue epilogue, int32_t m) {
    return cuda::linear_path(invariant(n, k, epilogue), m, h200()) == cuda::LinearPath::kSm90Gemm;
  };
  EXPECT_FALSE(in_blocks(4096, 1024, kStore, 256));  // Qwen3-0.6B
  EXPECT_FALSE(in_blocks(4096, 1024, kStore, 512));
  for (const int32_t k : {2048, 3072}) {
    EXPECT_TRUE(in_blocks(1024, k, kAdd, 256));
    EXPECT_TRUE(in_blocks(1024, k, kAdd, 512));
    EXPECT_FALSE(in_blocks(1024, k, kAdd, 1024));
  }
  EXPECT_FALSE(in_blocks(6144, 4096, kStore, 256));  // 8B
  EXPECT_FALSE(in_blocks(6144, 4096, kStore, 384));
  for (const int32_t k : {4096, 12288}) {
    EXPECT_TRUE(in_blocks(4096, k, kAdd, 256));
    EXPECT_TRUE(in_blocks(4096, k, kAdd, 384));
    EXPECT_FALSE(in_blocks(4096, k, kAdd, 512));
  }
  // Tiles of 256 rows would waste a quarter of 384 rows.
  EXPECT_FALSE(in_blocks(24576, 4096, kSwiGlu, 256));
  EXPECT_TRUE(in_blocks(24576, 4096, kSwiGlu, 384));
  EXPECT_FALSE(in_blocks(24576, 4096, kSwiGlu, 512));
  for (const int32_t n : {1024, 4096, 24576}) {
    EXPECT_FALSE(in_blocks(n, 4096, kAdd, 1025));
  }
}

TEST(LinearPlan, LargeTilesAreAsWideAsFillsTheirWaves) {
  const auto cols = [](int32_t m, int32_t n, int32_t parts) {
    return cuda::sm90_large_plan(m, n, parts, 132, true).cols;
  };
  const auto cols_of_bf16 = [](int32_t m, int32_t n, int32_t parts) {
    return cuda::sm90_large_plan(m, n, parts, 132, false).cols;
  };
  EXPECT_EQ(cols_of_bf16(256, 4096, 1), 64);  // Qwen3-0.6B
  EXPECT_EQ(cols_of_bf16(256, 6144, 1), 96);
  EXPECT_EQ(cols_of_bf16(512, 4096, 1), 128);
  EXPECT_EQ(cols_of_bf16(256, 1024, 4), 64) << "with parts as for float32";
  EXPECT_EQ(cols(512, 4096, 1), 128);  // Qwen3-0.6B
  EXPECT_EQ(cols(768, 4096, 1), 192);
  EXPECT_EQ(cols(1024, 4096, 1), 256);
  EXPECT_EQ(cols(512, 6144, 1), 192);
  EXPECT_EQ(cols(8192, 6144, 1), 256);
  EXPECT_EQ(cols(1024, 1024, 4), 64);
  EXPECT_EQ(cols(2048, 1024, 4), 128);
  EXPECT_EQ(cols(768, 4096, 2), 192);  // 8B
  EXPECT_EQ(cols(8192, 4096, 2), 128);
}

TEST(LinearPlan, RoomForSumsOfSquares) {
  EXPECT_EQ(half_norm_squares(1, 1024), 4 * 16);  // in quarters
  EXPECT_EQ(half_norm_squares(8, 1000), 8 * 4 * 16);
  EXPECT_EQ(half_norm_squares(9, 1024), 32 * 16);  // or 9 * 16, for more than 8 rows
  EXPECT_EQ(half_norm_squares(100, 64), 100);
}

TEST(LinearPlan, NormsOfManyRowsAreLeftToProductsThatRoundTheirInputs) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  LinearShape behind{.n = 6144, .k = 4096, .batch_invariant = true, .weights = PackedKind::kF8F8};
  EXPECT_EQ(most_norms_begun(behind), 128);
  behind.k = 16384 + 64;  // more than its kernel holds
  EXPECT_EQ(most_norms_begun(behind), kAll);
  behind.k = 4096;
  behind.weights = PackedKind::kF8;
  EXPECT_EQ(most_norms_begun(behind), kAll);
}

// What stands before and behind a product in a layer.
struct Operation {
  LinearShape shape;
  bool norm = false;         // before it
  bool norm_begun = false;   // by the sum before it
  bool begins_norm = false;  // of the product behind it
};

int kernels_of(const Operation& op, int32_t m) {
  const cuda::LinearPath path = cuda::linear_path(op.shape, m, h200());
  const bool norm_inside = op.norm_begun || (path == cuda::LinearPath::kSm80Gemm &&
                                             cuda::sm80_gemm_takes_norm(m, op.shape.k));
  return 1 + (op.norm && !norm_inside ? 1 : 0) +
         (path == cuda::LinearPath::kLibrary && op.shape.epilogue == kSwiGlu ? 1 : 0) +
         (path == cuda::LinearPath::kSm90LargeGemm && op.begins_norm ? 1 : 0);
}

int kernels_of_a_layer(
    bool batch_invariant, int32_t hidden, int32_t heads, int32_t inner, int32_t qkv, int32_t m) {
  LinearShape shapes[4] = {shape(qkv, hidden, kStore),
                           shape(hidden, heads, kAdd),
                           shape(2 * inner, hidden, kSwiGlu),
                           shape(hidden, inner, kAdd)};
  for (LinearShape& s : shapes) {
    s.batch_invariant = batch_invariant;
    s.y = s.epilogue == kAdd ? DType::kF32 : DType::kBF16;
  }
  const bool halved[2] = {halved_norm_rows(h200(), shapes[3], shapes[0]).has(m),
                          halved_norm_rows(h200(), shapes[1], shapes[2]).has(m)};
  return kernels_of({shapes[0], true, halved[0], false}, m) +
         kernels_of({shapes[1], false, false, halved[1]}, m) +
         kernels_of({shapes[2], true, halved[1], false}, m) +
         kernels_of({shapes[3], false, false, halved[0]}, m);
}

TEST(LinearPlan, BatchInvarianceAddsNoKernelToALayer) {
  for (const int32_t m : {1, 2, 4, 8, 9, 16, 17, 32, 64, 65, 128, 129, 256, 512, 1024, 8192}) {
    const int small[2] = {kernels_of_a_layer(false, 1024, 2048, 3072, 4096, m),
                          kernels_of_a_layer(true, 1024, 2048, 3072, 4096, m)};
    const int large[2] = {kernels_of_a_layer(false, 4096, 4096, 12288, 6144, m),
                          kernels_of_a_layer(true, 4096, 4096, 12288, 6144, m)};
    EXPECT_LE(small[1], small[0]) << m;
    EXPECT_LE(large[1], large[0]) << m;
    EXPECT_EQ(large[1], m <= 256 ? 4 : 6) << m;
  }
}

// Row r of w in a unit, in the order in which the tensor map's box has them.
int32_t row_of(const cuda::Sm90WarpUnit& unit, int32_t r, int32_t n, bool gate, bool leaves_norm) {
  if (leaves_norm) {
    return (unit.block + r / 4) * 16 + unit.row + r % 4;
  }
  return gate ? r / 8 * (n / 2) + unit.row + r % 8 : unit.row + r;
}

TEST(Sm90WarpPlan, UnitsHaveEveryRowAndOutputOnce) {
  for (const auto& [n, gate, leaves_norm] :
       {std::tuple{320, false, false}, {320, true, false}, {320, false, true}}) {
    const cuda::Sm90WarpPlan plan = cuda::sm90_warp_plan(1,
                                                         n,
                                                         64,
                                                         gate          ? kSwiGlu
                                                         : leaves_norm ? kAdd
                                                                       : kStore,
                                                         1,
                                                         132);
    std::vector<int> rows(static_cast<size_t>(n));
    std::vector<int> outputs(static_cast<size_t>(gate ? n / 2 : n));
    for (int32_t u = 0; u < plan.num_units; ++u) {
      const cuda::Sm90WarpUnit unit = cuda::sm90_warp_unit(u, gate, leaves_norm);
      for (int32_t r = 0; r < cuda::kSm90WarpUnit; ++r) {
        const int32_t row = row_of(unit, r, n, gate, leaves_norm);
        ++rows.at(static_cast<size_t>(row));
        if (gate && r >= 8) {
          continue;
        }
        const int32_t output = unit.output + r / 4 * unit.stride + r % 4;
        EXPECT_EQ(output, row);
        ++outputs.at(static_cast<size_t>(output));
      }
    }
    EXPECT_EQ(rows, std::vector<int>(rows.size(), 1));
    EXPECT_EQ(outputs, std::vector<int>(outputs.size(), 1));
  }
}

TEST(Sm90WarpPlan, FitsAndCoversEveryUnit) {
  for (const int32_t n : {8, 40, 1024, 4096, 6144, 24576, 151936}) {
    for (const int32_t k : {64, 320, 1024, 4096, 12288}) {
      for (const int32_t parts : {1, 2, 4}) {
        for (const LinearEpilogue epilogue : {kStore, kSwiGlu}) {
          for (int32_t m = 1; m <= cuda::kMaxSm90WarpRows; ++m) {
            const cuda::Sm90WarpPlan plan =
                cuda::sm90_warp_plan(m, n, k, epilogue, parts, h200().num_sms);
            EXPECT_LE(cuda::sm90_warp_shared_bytes(plan, m),
                      static_cast<size_t>(cuda::kSm90GemmSharedBytes));
            EXPECT_LE(plan.parts * plan.groups, cuda::kMaxSm90Warps);
            EXPECT_LE(plan.num_blocks, h200().num_sms);
            const int32_t steps = ceil_div(k / 64, parts);
            EXPECT_GE(plan.stages, steps > cuda::kSm90WarpSteps ? 2 : 1);
            EXPECT_GE(plan.num_units * cuda::kSm90WarpUnit, n);
          }
        }
      }
    }
  }
}

// One row of the 0.6B: a CTA has all its weights on their way before it waits, and leaves room for the next kernel's.
TEST(Sm90WarpPlan, SmallWeightsAreOnTheirWayAtOnce) {
  for (const auto& [n, k, epilogue] : {std::tuple{4096, 1024, kStore},
                                       {1024, 2048, kAdd},
                                       {6144, 1024, kSwiGlu},
                                       {1024, 3072, kAdd}}) {
    const int32_t parts = cuda::invariant_chunks(invariant(n, k, epilogue), h200());
    const cuda::Sm90WarpPlan plan = cuda::sm90_warp_plan(1, n, k, epilogue, parts, h200().num_sms);
    EXPECT_EQ(plan.stages * cuda::kSm90WarpSteps, k / 64 / parts) << n << " x " << k;
    EXPECT_GE(plan.num_blocks * plan.groups, plan.num_units) << n << " x " << k;
  }
}

// One wave of an H200 has at least 40 KB an SM on their way, which 4.8 TB/s take (latency times rate).
TEST(Sm90WarpPlan, HasEnoughBytesOnTheirWay) {
  for (const auto& [n, k, parts] :
       {std::tuple{6144, 4096, 1}, {4096, 4096, 2}, {24576, 1024, 1}, {4096, 12288, 2}}) {
    for (const int32_t m : {1, 4, 8}) {
      const cuda::Sm90WarpPlan plan =
          cuda::sm90_warp_plan(m, n, k, n == 24576 ? kSwiGlu : kStore, parts, h200().num_sms);
      EXPECT_GE(plan.parts * plan.groups * plan.stages * cuda::kSm90WarpSteps * 2048, 52 << 10)
          << n << " x " << k;
    }
  }
}

// Rings of a product that waits for memory take a whole SM. Others leave room for attention's CTA, or for the next product's.
TEST(Sm90WarpPlan, RingsTakeWhatTheBytesNeed) {
  const auto room = [](int32_t n, int32_t k, LinearEpilogue epilogue) {
    return cuda::sm90_warp_room(n, k, epilogue, h200().num_sms);
  };
  constexpr int32_t kAll = cuda::kSm90GemmSharedBytes;
  EXPECT_EQ(room(6144, 4096, kStore), kAll);  // Qwen3-8B
  EXPECT_EQ(room(4096, 4096, kAdd), kAll);
  EXPECT_EQ(room(24576, 4096, kSwiGlu), kAll);
  EXPECT_EQ(room(151936, 1024, kStore), kAll);
  constexpr int32_t kAttention = 96 << 10;                             // rings of its CTA
  EXPECT_LE(room(5120, 2048, kStore) + kAttention, kAll + (1 << 10));  // Qwen3-30B-A3B
  EXPECT_LE(room(4096, 1024, kStore) + kAttention, kAll + (1 << 10));  // Qwen3-0.6B
  constexpr size_t kAttentionCta = 99 << 10;
  constexpr size_t kSm = 227 << 10;
  for (const auto& [n, k] : {std::pair{5120, 2048}, {4096, 1024}}) {
    const cuda::Sm90WarpPlan qkv = cuda::sm90_warp_plan(1, n, k, kStore, 1, h200().num_sms);
    EXPECT_LE(cuda::sm90_warp_shared_bytes(qkv, 1) + kAttentionCta, kSm) << n << " x " << k;
  }
  // Eight rows of the 0.6B: all of gate and up is on its way at once.
  const cuda::Sm90WarpPlan plan = cuda::sm90_warp_plan(8, 6144, 1024, kSwiGlu, 1, h200().num_sms);
  EXPECT_EQ(plan.stages * cuda::kSm90WarpSteps, 1024 / 64);
  EXPECT_GE(plan.num_blocks * plan.groups, plan.num_units);
}

// Rows that are not whole steps of 64 inputs stay with the GEMM for small M.
TEST(Sm90WarpPlan, WeightsThatItTakes) {
  EXPECT_EQ(cuda::sm90_warp_rows(4096), cuda::kMaxSm90WarpRows);
  EXPECT_EQ(cuda::sm90_warp_rows(1000), 0);
}

// Where L2 is the limit, larger tiles of w load less than tiles of 64. Their ends take longer.
TEST(Sm90GemmPlan, ManyRowsTakeLargeTiles) {
  const auto groups = [](int32_t m, int32_t n, int32_t k, int32_t parts) {
    return cuda::sm90_gemm_plan(m, n, k, h200().num_sms, parts).groups;
  };
  EXPECT_EQ(groups(128, 6144, 4096, 1), 1);
  EXPECT_EQ(groups(128, 151936, 4096, 1), 3);
  EXPECT_EQ(groups(128, 4096, 4096, 2), 1);
  EXPECT_EQ(groups(256, 4096, 4096, 2), 2);
  EXPECT_EQ(groups(256, 4096, 12288, 2), 2);
  EXPECT_EQ(groups(128, 4096, 1024, 1), 1);
  EXPECT_EQ(groups(128, 1024, 3072, 4), 1);
  EXPECT_EQ(groups(256, 1024, 3072, 4), 2);
  EXPECT_EQ(groups(32, 6144, 1024, 1), 1);
  EXPECT_EQ(groups(1, 24576, 4096, 1), 3);  // memory is the limit
  EXPECT_EQ(groups(64, 151936, 1024, 1), 1);
}

// Boxes of x do not leave its tensor map where there is memory behind the last row.
TEST(Sm90GemmArgs, RowsOfAMapAreWholeBoxesWithinMemory) {
  cuda::Sm90GemmArgs args;
  args.m = 72;
  EXPECT_EQ(args.mapped_rows(128), 72U);
  args.x_capacity = 100;
  EXPECT_EQ(args.mapped_rows(128), 100U);
  args.x_capacity = 8192;
  EXPECT_EQ(args.mapped_rows(128), 128U);
  EXPECT_EQ(args.mapped_rows(64), 128U);
  EXPECT_EQ(args.mapped_rows(32), 96U);
  std::vector<float> memory(32 * 4);
  const ActView all(DType::kF32, memory.data(), 32, 4);
  EXPECT_EQ(ConstActView(all.rows(0, 5)).capacity, 32);
  EXPECT_EQ(all.rows(10, 5).rows(2, 1).capacity, 20);
  EXPECT_EQ(all.columns(1, 2).rows(30, 1).capacity, 2);
}

TEST(Sm90GemmPlan, BlocksOfRowsFit) {
  for (const int32_t n : {64, 1024, 4096, 24576, 151936}) {
    for (const int32_t k : {64, 2048, 12288}) {
      for (const int32_t parts : {1, 2, 4, 8}) {
        for (const int32_t m : {1, 64, 128, 129, 512, 1024}) {
          const cuda::Sm90GemmPlan plan = cuda::sm90_gemm_plan(m, n, k, h200().num_sms, parts);
          EXPECT_EQ(plan.split, parts);
          EXPECT_GE(plan.stages, 2);
          EXPECT_LE(cuda::sm90_gemm_shared_bytes(plan),
                    static_cast<size_t>(cuda::kSm90GemmSharedBytes));
        }
      }
    }
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
