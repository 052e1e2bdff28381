// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"
#include "kernels/experts/unit_rounds.cuh"

#include <cuda_runtime.h>

// Formula: as in expert_linear.h, for MXFP4 and tiles of the work list of up to eight places.
// Mapping: one CTA an SM, with an equal share of the units of all tiles in order: 16 rows of an expert's matrix and the
//   places of a tile. In a round up to kWarps warps have one of adjacent units each, and one more warp copies the rows of x of
//   their tiles to a ring of stages of kDepth tiles of 64 inputs. A warp loads kDepth tiles of w into registers at a time; at
//   the end of a unit it loads the first tiles of its next unit. It dequantises them in place and multiplies by mma.sync
//   m16n8k16. Units of 16 rows spread the experts of a few rows of x evenly over the SMs.
// Bytes moved: the matrices of all experts in the list, once for each of their tiles; x from L2 once a round.
//   A product with x by place follows another product with the same list. That one waited for the list, so this one reads the
//   list and loads w before it waits for the preceding kernel.
// Numerics: as sm90_expert_gemm, bit for bit.
// Preconditions: as sm90_expert_gemm; k a multiple of 32.
// Origin: own design.
namespace warprow::cuda {
namespace {

constexpr int kWarps = 16;                   // that multiply
constexpr int kThreads = (kWarps + 4) * 32;  // setmaxnreg counts whole warpgroups

constexpr int kDepth = 9;                     // tiles of w that a warp loads at a time
constexpr int kBlock = 8;                     // most places of a tile
constexpr int kRows = 32;                     // of x in a stage, eight for each tile of the round
constexpr int kRowBytes = kDepth * 128 + 16;  // no bank conflicts
constexpr int kStageBytes = kRows * kRowBytes;
constexpr int kStages = 3;
constexpr size_t kSharedBytes = size_t{kStages} * kStageBytes;
using Stages = RingCursor<kStages>;

// Registers of a thread. A CTA never has more than it was launched with, and raise_registers would wait for ever for them.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // what ptxas makes of __launch_bounds__
constexpr int kLoaderRegisters = 24;
constexpr int kMultiplierRegisters = 112;
static_assert(kWarps * 32 * kMultiplierRegisters + 4 * 32 * kLoaderRegisters <=
              kThreads * kLaunchRegisters);

struct Params {
  ExpertGemmArgs a;
  UnitShares shares;
  int32_t steps;  // of 64 inputs
};

// Calls visit(entry of the list, first row of x in a stage, first unit of the round, the unit behind the last, first unit of
// the tile) for each tile of the round from unit `at` on. Returns the next round's first unit.
template <typename Visit>
__device__ __forceinline__ int visit_round(
    const Params& p, const UnitList& list, int at, int end, const Visit& visit) {
  const int last = min(end, at + kWarps);
  for (int row = 0; at < last && row < kRows; row += kBlock) {
    const int index = quotient(at, p.shares.inverse_units);
    const int first = index * p.shares.units;
    const int behind = min(last, first + p.shares.units);
    visit(list.entry(index), row, at, behind, first);
    at = behind;
  }
  return at;
}

// What a warp does in a round.
struct RoundUnit {
  int expert = 0;
  int place = 0;
  int num_places = 0;  // 0: nothing
  int row = 0;         // of x in a stage
  int number = 0;      // in the expert's matrix

  // next: becomes the next round's first unit.
  __device__ __forceinline__
  RoundUnit(const Params& p, const UnitList& list, int at, int end, int warp, int& next) {
    const auto visit = [&](const int4& entry, int first_row, int first, int behind, int tile) {
      if (first <= at + warp && at + warp < behind) {
        expert = entry.x;
        place = entry.y;
        num_places = entry.z;
        row = first_row;
        number = at + warp - tile;
      }
    };
    next = visit_round(p, list, at, end, visit);
  }
};

// One warp: copies rows of x.
__device__ __forceinline__ void load_x(
    const Params& p, const UnitList& list, Stages ring, int at, int end) {
  constexpr int kInputs = kDepth * 64;  // of a stage
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = read_again();
  while (at < end) {
    // Where the lane's row of a stage is in x. Null: the row has no place.
    const Bf16* own_row = nullptr;
    int num_rows = 0;
    at = visit_round(p, list, at, end, [&](const int4& entry, int first_row, int, int, int) {
      num_rows += entry.z;
      const int own = lane - first_row;
      if (own >= 0 && own < entry.z) {
        int64_t row = entry.y + own;
        if (p.a.slots != nullptr) {
          row = __ldcg(p.a.slots + row) / p.a.num_chosen;
        }
        own_row = static_cast<const Bf16*>(p.a.x) + row * p.a.x_stride;
      }
    });
    for (int input = 0; input < p.a.k; input += kInputs, ring.next()) {
      const int bytes = min(kInputs, p.a.k - input) * 2;
      barrier_wait(ring.empty(), ring.phase ^ 1);
      fence_async_proxy();
      if (lane == 0) {
        barrier_arrive_expecting(ring.full(), num_rows * bytes);
      }
      __syncwarp();
      if (own_row != nullptr) {
        const uint32_t stage = ring.data + ring.stage * kStageBytes;
        bulk_load(stage + lane * kRowBytes, own_row + input, bytes, ring.full(), policy);
      }
    }
  }
}

// Where the lane's numbers and scales of 16 rows and 64 inputs are.
struct Source {
  const std::byte* numbers;
  const std::byte* scales;

  __device__ __forceinline__ Source(const Params& p, const RoundUnit& unit, int lane) {
    const int64_t tile = int64_t{unit.expert} * ((p.a.n + 63) / 64) + unit.number / 4;
    const std::byte* first =
        static_cast<const std::byte*>(p.a.w) + tile * p.steps * kMxfp4TileBytes;
    numbers = first + unit.number % 4 * 512 + lane * 16;
    scales = first + kMxfp4NumberBytes + unit.number % 4 * 32 + lane / 4 * 4;
  }
  __device__ __forceinline__ void move(int tiles) {
    numbers += tiles * kMxfp4TileBytes;
    scales += tiles * kMxfp4TileBytes;
  }
};

// A warp that multiplies.
template <LinearEpilogue kEpilogue>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const Params& p, const UnitList& list, const Stages& ring)
      : p_(p),
        list_(list),
        ring_(ring),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        policy_(read_once()) {}

  // All rounds from unit `at` to `end`. wait: called when the first tiles of w are on their way.
  template <typename Wait>
  __device__ __forceinline__ void run(int at, int end, const Wait& wait) {
    RoundUnit unit(p_, list_, at, end, warp_, at);
    const Source first(p_, unit, lane_);
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      words_[i] = {};
      scales_[i] = 0;
      fetch(i, first, unit.num_places > 0 && i < p_.steps);
    }
    wait();
    for (bool more = true; more;) {
      more = at < end;
      const RoundUnit next(p_, list_, at, end, warp_, at);
      run_unit(unit, next);
      unit = next;
    }
  }

 private:
  static constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;

  __device__ __forceinline__ void fetch(int i, const Source& from, bool valid) {
    uint4& words = words_[i];
    asm volatile(
        "{\n"
        ".reg .pred valid;\n"
        "setp.ne.b32 valid, %7, 0;\n"
        "@valid ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%5], %8;\n"
        "@valid ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %4, [%6], %8;\n"
        "}\n"
        : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w), "+r"(scales_[i])
        : "l"(from.numbers + i * kMxfp4TileBytes),
          "l"(from.scales + i * kMxfp4TileBytes),
          "r"(valid ? 1 : 0),
          "l"(policy_));
  }

  // The stage was read by ldmatrix, and a bulk copy overwrites it next. Without a fence, an ldmatrix that is issued but still
  // queued behind loads of w may read after the copy has written.
  __device__ __forceinline__ void release() {
    fence_async_proxy();
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(ring_.empty());
    }
    ring_.next();
  }

  // Computes a unit whose first tiles are being loaded, and starts to load those of the next unit.
  __device__ __forceinline__ void run_unit(const RoundUnit& unit, const RoundUnit& next) {
    unit.num_places == 0 ? skip(next) : multiply_unit(unit, next);
  }

  // This warp has no unit in the round, but other warps have.
  __device__ __forceinline__ void skip(const RoundUnit& next) {
    const Source from(p_, next, lane_);
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      fetch(i, from, next.num_places > 0 && i < p_.steps);
    }
    for (int left = p_.steps; left > 0; left -= kDepth) {
      barrier_wait(ring_.full(), ring_.phase);
      release();
    }
  }

  // sum += w * x^T over the 64 inputs of loaded tile i. x: the lane's part of a stage's rows. both: else only the first 32.
  __device__ __forceinline__ void multiply(float (&sum)[4],
                                           int i,
                                           uint32_t x,
                                           bool both = true) const {
    const Mxfp4Numbers numbers(words_[i], scales_[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && !both) {
        break;
      }
      uint32_t w[2][4];
      numbers.dequantise(half * 2, w[0]);
      numbers.dequantise(half * 2 + 1, w[1]);
      uint32_t pairs[4];
      load_matrices(pairs, x + i * 128 + half * 64);
      mma_bf16(sum, w[0], pairs[0], pairs[1]);
      mma_bf16(sum, w[1], pairs[2], pairs[3]);
    }
  }

  __device__ __forceinline__ void multiply_unit(const RoundUnit& unit, const RoundUnit& next) {
    const ExpertBias bias(p_.a, kGates, unit.expert, unit.number * 16, lane_);
    float sum[4] = {};
    // The row of x and the 16 bytes of it that the lane gives to ldmatrix.
    const int own = (unit.row + lane_ % 8) * kRowBytes + lane_ / 8 * 16;
    const auto stage = [&] { return ring_.data + ring_.stage * kStageBytes + own; };
    Source from(p_, unit, lane_);
    int left = p_.steps;
    const bool has_tail = p_.a.k % 64 != 0 || left % kDepth != 0;
    for (; left > kDepth || (left == kDepth && !has_tail); left -= kDepth) {
      from.move(kDepth);
      int loads = min(kDepth, left - kDepth);  // of this unit
      if (left == kDepth) {
        from = Source(p_, next, lane_);
        loads = next.num_places > 0 ? kDepth : 0;
      }
      barrier_wait(ring_.full(), ring_.phase);
      const uint32_t x = stage();
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        multiply(sum, i, x);
        fetch(i, from, i < loads);
      }
      release();
    }
    if (has_tail) {
      const Source behind(p_, next, lane_);
      barrier_wait(ring_.full(), ring_.phase);
      const uint32_t x = stage();
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        if (i < left) {
          multiply(sum, i, x, i + 1 < left || p_.a.k % 64 == 0);
        }
        fetch(i, behind, next.num_places > 0 && i < p_.steps);
      }
      release();
    }
    write(sum, bias, unit);
  }

  __device__ __forceinline__ void write(const float (&v)[4],
                                        const ExpertBias& bias,
                                        const RoundUnit& unit) const {
    const int first = unit.number * (kGates ? 8 : 16);
    const int outputs = kGates ? p_.a.n / 2 : p_.a.n;
    Bf16* to = static_cast<Bf16*>(p_.a.y) + (unit.place + lane_ / 4) * p_.a.y_stride + first +
               lane_ % 4 * 2;
    const bool is_place = lane_ / 4 < unit.num_places;
    with_gate_form<kGates>(p_.a.gate_limit, [&]<GateForm kForm>() {
      store_products<kGates, kForm>(v, bias, to, is_place, first, outputs);
    });
  }

  const Params& p_;
  const UnitList& list_;
  Stages ring_;
  int warp_;
  int lane_;
  uint64_t policy_;
  // Tiles of w.
  uint4 words_[kDepth];
  uint32_t scales_[kDepth];
};

template <LinearEpilogue kEpilogue>
__global__ void __launch_bounds__(kThreads, 1) mxfp4_unit_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ uint64_t barriers[2 * kStages];
  __shared__ int4 entries[kListRoom];
  const Stages ring{shared_address(memory), shared_address(barriers), kStages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
      barrier_init(ring.barriers + (kStages + i) * 8, kWarps);
    }
    fence_async_proxy();
  }
  const bool lists_are_old = p.a.slots == nullptr;
  if (!lists_are_old) {
    pdl_wait();
    pdl_release();
  }
  const auto wait = [&] {
    if (lists_are_old) {
      pdl_wait();
      pdl_release();
    }
  };
  UnitList list;
  const Round share = read_list(p.a, p.shares, kWarps, entries, list);
  const int at = share.tile * p.shares.units + share.number;
  const int end = at + share.left;
  __syncthreads();
  if (threadIdx.x >= kWarps * 32) {
    lower_registers<kLoaderRegisters>();
    wait();
    if (threadIdx.x < (kWarps + 1) * 32) {
      load_x(p, list, ring, at, end);
    }
  } else {
    raise_registers<kMultiplierRegisters>();
    if (at < end) {
      Multiplier<kEpilogue>(p, list, ring).run(at, end, wait);
    } else {
      wait();
    }
  }
}

template <LinearEpilogue kEpilogue>
void launch_instance(Stream& stream, const Params& params) {
  constexpr auto* kKernel = &mxfp4_unit_kernel<kEpilogue>;
  // Loads of w in flight need room in L1, so an SM should not keep the division that the kernel before had.
  constexpr int kSharedPercent = 50;
  allow_shared_bytes<kKernel>(kSharedBytes, kSharedPercent);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(stream.device().facts().num_sms));
  shape.block = dim3(kThreads);
  shape.shared_bytes = kSharedBytes;
  launch(stream, "sm90_mxfp4_unit_gemm", shape, kKernel, params);
}

}  // namespace

void sm90_mxfp4_unit_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue) {
  const Params params{
      .a = args,
      .shares = UnitShares(args, ceil_div(args.n, 16), stream.device().facts().num_sms),
      .steps = ceil_div(args.k, kMxfp4TileCols)};
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch_instance<LinearEpilogue::kSwiGlu>(stream, params);
  } else {
    launch_instance<LinearEpilogue::kStore>(stream, params);
  }
}

}  // namespace warprow::cuda
