// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in expert_linear.h, for FP8 matrices in tiles of linear operations (quant_tiles.h) and tiles of the work list of up
//   to eight places.
// Mapping: one CTA an SM. A warp takes units: 16 rows of an expert's matrix and the places of a tile of the list, in one chain
//   of mma.sync m16n8k16 over k. Unit u is of CTA u % gridDim, so that the experts of a few rows of x spread evenly over the
//   SMs. A gated unit is 16 gate rows and their up rows, which two warps have; they exchange half of their sums. Every warp
//   fills a ring of its own, across the ends of units: tiles of w in one bulk copy, and one for each row of x. It reads a
//   stage into registers and refills it before it multiplies.
// Bytes moved: the matrices of all experts in the list, once for each of their tiles; x from L2 once for 16 rows of w.
//   A product with x by place follows another product with the same list. That one waited for the list, so this one reads the
//   list and loads w before it waits for the preceding kernel.
// Numerics: as sm90_expert_gemm, bit for bit.
// Preconditions: as sm90_expert_gemm; k a multiple of 16.
// Origin: own design.
namespace warprow::cuda {
namespace {

constexpr int kWarps = 12;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 2;                           // of a warp
constexpr int kStageTiles = 2;                       // of 128 inputs
constexpr int kBlock = 8;                            // most places of a tile of the list
constexpr int kRowBytes = kStageTiles * 256 + 16;    // of x; no bank conflicts
constexpr int kExchangeBytes = 2 * kWarps * 32 * 8;  // half of the sums, double-buffered
constexpr int kTileSteps = kQuantTileCols / 16;

struct Params {
  ExpertGemmArgs a;
  int32_t units;        // of an expert's matrix
  int32_t tiles;        // of 128 inputs
  int32_t x_rows;       // most places of a tile of the list
  int32_t w_bytes;      // room for a stage's tiles
  int32_t stage_bytes;  // and rows of x
};

// A tile of w and the rows of x that it is multiplied with, as m16n8k16 takes them.
struct Operands {
  using Numbers = QuantNumbers<PackedKind::kF8, false>;
  static constexpr int kLoads = kTileSteps / Numbers::kStepsOfLoad;

  uint4 words[kLoads];
  uint32_t scales[2];  // of rows lane / 4 and the one 8 below
  uint32_t x[kTileSteps / 2][4];

  // w: the tile in shared memory; x_at: the lane's part of the rows of x.
  __device__ __forceinline__ void read(uint32_t w, uint32_t x_at, int lane) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      words[i] = load_shared_four(w + i * 512 + lane * 16);
    }
    const uint32_t scales_at = w + quant_number_bytes(PackedKind::kF8) + lane / 4 * 4;
    scales[0] = load_shared(scales_at);
    scales[1] = load_shared(scales_at + 32);
#pragma unroll
    for (int i = 0; i < kTileSteps / 2; ++i) {
      load_matrices(x[i], x_at + i * 64);
    }
  }

  // Adds the products of the first `steps` steps of 16 inputs; kWhole: of all.
  template <bool kWhole>
  __device__ __forceinline__ void multiply(float (&sum)[4], int steps) const {
    TwoBf16Scale of_rows[2] = {};
    of_rows[0].set_scale(scales[0]);
    of_rows[1].set_scale(scales[1]);
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      if (!kWhole && step >= steps) {
        break;
      }
      uint32_t d[4];
      dequantise_step<Numbers>({words[step / Numbers::kStepsOfLoad], {}}, step, of_rows, d);
      mma_bf16(sum, d, x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
    }
  }
};

template <bool kGates>
class UnitWarp {
 public:
  __device__ __forceinline__
  UnitWarp(const Params& p, uint32_t stages, uint32_t barriers, float2* exchange)
      : p_(p),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        member_(warp_ % kMembers),
        data_(stages + warp_ * kStages * p.stage_bytes),
        barriers_(barriers + warp_ * kStages * 8),
        exchange_(exchange),
        w_policy_(read_once()),
        x_policy_(read_again()) {}

  __device__ void init_barriers() const {
    if (lane_ < kStages) {
      barrier_init(barriers_ + lane_ * 8, 1);
    }
    fence_async_proxy();
    __syncwarp();
  }

  // All units. wait: called when the first tiles of w are on their way.
  template <typename Wait>
  __device__ __forceinline__ void run(const Wait& wait) {
    const int first = static_cast<int>(blockIdx.x) + warp_ / kMembers * static_cast<int>(gridDim.x);
    stride_ = kWarps / kMembers * static_cast<int>(gridDim.x);
    feed_.coming = entry(min(first / p_.units, p_.a.max_tiles - 1));
    end_ = __ldcg(p_.a.tiles) * p_.units;
    feed_.unit = first;
    feed_.enter(*this);
    Feed ahead = feed_;
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      if (ahead.unit < end_) {
        load_w(ahead, s);
        ahead.move(*this);
      }
    }
    wait();
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      if (feed_.unit < end_) {
        load_x(feed_, s);
        feed_.move(*this);
      }
    }
    int turn = 0;
    for (int unit = first; unit < end_; unit += stride_, ++turn) {
      const ListTile tile(p_.a, unit / p_.units);
      float sum[4] = {};
      for (int at = 0; at < p_.tiles; at += kStageTiles) {
        multiply_stage(at, sum);
      }
      write(sum, tile, unit % p_.units, turn);
    }
  }

 private:
  static constexpr int kMembers = kGates ? 2 : 1;

  // What is to be loaded next, ahead of the products.
  struct Feed {
    int unit;
    int tile;  // of the unit: 128 inputs
    int num_places;
    int slot;            // the lane's place, or its slot
    const std::byte* w;  // the unit's
    const Bf16* x;       // the lane's row
    int4 coming;         // the work list's entry of the next unit

    // Moves to the first tiles of `unit`, whose entry is `coming`, and loads the next unit's entry.
    __device__ __forceinline__ void enter(const UnitWarp& of) {
      const Params& p = of.p_;
      tile = 0;
      if (unit >= of.end_) {
        return;
      }
      num_places = coming.z;
      const int64_t rows =
          int64_t{coming.x} * (p.a.n / kQuantTileRows) + of.member_ * p.units + unit % p.units;
      w = static_cast<const std::byte*>(p.a.w) + rows * p.tiles * p.a.tile_bytes;
      slot = coming.y + min(of.lane_, num_places - 1);
      if (p.a.slots != nullptr) {
        slot = __ldcg(p.a.slots + slot);
      }
      if (unit + of.stride_ < of.end_) {
        coming = of.entry((unit + of.stride_) / p.units);
      }
    }
    __device__ __forceinline__ void move(const UnitWarp& of) {
      tile += kStageTiles;
      if (tile >= of.p_.tiles) {
        unit += of.stride_;
        enter(of);
      }
    }
  };

  [[nodiscard]] __device__ __forceinline__ int4 entry(int tile) const {
    return __ldcg(reinterpret_cast<const int4*>(p_.a.tiles) + 1 + tile);
  }
  [[nodiscard]] __device__ uint32_t stage(int s) const { return data_ + s * p_.stage_bytes; }
  [[nodiscard]] __device__ int num_tiles(int first) const {
    return min(kStageTiles, p_.tiles - first);
  }
  [[nodiscard]] __device__ int row_bytes(int first_tile) const {
    return min(kStageTiles * kQuantTileCols, p_.a.k - first_tile * kQuantTileCols) * 2;
  }

  __device__ __forceinline__ void load_w(const Feed& feed, int s) const {
    if (lane_ == 0) {
      const int bytes = num_tiles(feed.tile) * p_.a.tile_bytes;
      const uint32_t full = barriers_ + s * 8;
      barrier_arrive_expecting(full, bytes + feed.num_places * row_bytes(feed.tile));
      bulk_load(stage(s), feed.w + int64_t{feed.tile} * p_.a.tile_bytes, bytes, full, w_policy_);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void load_x(Feed& feed, int s) const {
    if (feed.tile == 0) {  // only here, after the load of w: this waits for the load of the slot
      const int row = p_.a.slots != nullptr ? feed.slot / p_.a.num_chosen : feed.slot;
      feed.x = static_cast<const Bf16*>(p_.a.x) + row * p_.a.x_stride;
    }
    if (lane_ < feed.num_places) {
      bulk_load(stage(s) + p_.w_bytes + lane_ * kRowBytes,
                feed.x + feed.tile * kQuantTileCols,
                row_bytes(feed.tile),
                barriers_ + s * 8,
                x_policy_);
    }
  }

  // The products of the stage that begins at tile `first` of a unit. Refills the stage.
  __device__ __forceinline__ void multiply_stage(int first, float (&sum)[4]) {
    const int s = stage_;
    barrier_wait(barriers_ + s * 8, phase_);
    if (++stage_ == kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
    const uint32_t w = stage(s);
    // Rows behind the last one have its values, and their products are not used.
    const int row = min(lane_ % kBlock, p_.x_rows - 1);
    const uint32_t x = w + p_.w_bytes + row * kRowBytes + lane_ / 8 * 16;
    Operands tiles[kStageTiles];
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      if (i == 0 || i < num_tiles(first)) {
        tiles[i].read(w + i * p_.a.tile_bytes, x + i * 256, lane_);
      }
    }
    if (feed_.unit < end_) {
      fence_async_proxy();  // the stage was read by ld.shared and ldmatrix
      __syncwarp();
      load_w(feed_, s);
      load_x(feed_, s);
      feed_.move(*this);
    }
    const int steps = p_.a.k / 16 - first * kTileSteps;
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      const int left = steps - i * kTileSteps;
      if (left >= kTileSteps) {
        tiles[i].template multiply<true>(sum, left);
      } else if (left > 0) {
        tiles[i].template multiply<false>(sum, left);
      }
    }
  }

  __device__ __forceinline__ void write(float (&sum)[4],
                                        const ListTile& tile,
                                        int number,
                                        int turn) const {
    const int outputs = kGates ? p_.a.n / 2 : p_.a.n;
    int first = number * kQuantTileRows;
    if constexpr (kGates) {
      // The warp of the gate rows has eight outputs, that of the up rows the eight behind them.
      float2* to = exchange_ + turn % 2 * kWarps * 32;
      to[threadIdx.x] = member_ == 0 ? float2{sum[2], sum[3]} : float2{sum[0], sum[1]};
      named_sync(1 + warp_ / 2, 64);
      const float2 other = to[threadIdx.x ^ 32];
      if (member_ == 0) {
        sum[2] = other.x;
        sum[3] = other.y;
      } else {
        sum[0] = other.x;
        sum[1] = other.y;
      }
      first += member_ * 8;
    }
    const ExpertBias bias(p_.a, kGates, tile.expert, kGates ? 2 * first : first, lane_);
    Bf16* to = static_cast<Bf16*>(p_.a.y) + (tile.place + lane_ / 4) * p_.a.y_stride + first +
               lane_ % 4 * 2;
    store_products<kGates>(sum, bias, to, lane_ / 4 < tile.num_places, first, outputs);
  }

  const Params& p_;
  int warp_;
  int lane_;
  int member_;  // of a gated unit's warps: 0 has the gate rows
  uint32_t data_;
  uint32_t barriers_;
  float2* exchange_;
  uint64_t w_policy_;
  uint64_t x_policy_;
  int stride_ = 0;
  int end_ = 0;  // units
  Feed feed_ = {};
  int stage_ = 0;
  uint32_t phase_ = 0;
};

template <bool kGates>
__global__ void __launch_bounds__(kThreads, 1) f8_unit_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ uint64_t barriers[kWarps * kStages];
  UnitWarp<kGates> warp(p,
                        shared_address(memory) + kExchangeBytes,
                        shared_address(barriers),
                        reinterpret_cast<float2*>(memory));
  warp.init_barriers();
  const bool lists_are_old = p.a.slots == nullptr;
  const auto wait = [&](bool now) {
    if (now) {
      pdl_wait();
      pdl_release();
    }
  };
  wait(!lists_are_old);
  warp.run([&] { wait(lists_are_old); });
}

template <bool kGates>
void launch_instance(Stream& stream, const ExpertGemmArgs& args) {
  const int32_t x_rows = std::clamp(args.max_places / args.num_chosen, 1, kBlock);
  const int32_t w_bytes = round_up(kStageTiles * args.tile_bytes, 128);
  const Params params{.a = args,
                      .units = args.n / (kGates ? 2 * kQuantTileRows : kQuantTileRows),
                      .tiles = ceil_div(args.k, kQuantTileCols),
                      .x_rows = x_rows,
                      .w_bytes = w_bytes,
                      .stage_bytes = w_bytes + round_up(x_rows * kRowBytes, 128)};
  constexpr auto* kKernel = &f8_unit_kernel<kGates>;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(stream.device().facts().num_sms));
  shape.block = dim3(kThreads);
  shape.shared_bytes = static_cast<size_t>(kExchangeBytes + kWarps * kStages * params.stage_bytes);
  allow_shared_bytes<kKernel>(shape.shared_bytes);
  launch(stream, "sm90_f8_unit_gemm", shape, kKernel, params);
}

}  // namespace

void sm90_f8_unit_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue) {
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch_instance<true>(stream, args);
  } else {
    launch_instance<false>(stream, args);
  }
}

}  // namespace warprow::cuda
