// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in expert_linear.h, for MXFP4 and tiles of the work list of few places.
// Mapping: one CTA an SM, with an equal share of the units of all tiles in order: 16 rows of an expert's matrix. A CTA keeps
//   the rows of x of some tiles in shared memory as a whole. A warp takes a unit at a time and has the next kDepth tiles of
//   64 inputs in registers, the next unit's among them, so no warp waits for another. It dequantises them there and
//   multiplies by mma.sync m16n8k16.
//   Dequantising is most of the work: 34 numbers a clock and SM must leave it to keep up with the memory of an H200.
// Bytes moved: the matrices of all experts in the list, once for each of their tiles.
//   A product whose x lies by place comes behind another one with the same list, which waited for the list, so it loads
//   w before it waits for the preceding kernel.
// Numerics: as sm90_expert_gemm, bit for bit.
// Preconditions: as sm90_expert_gemm.
// Origin: own design.
namespace warprow::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kDepth = 9;         // tiles of w that a warp has on their way
constexpr int kMostBlocks = 4;    // of 8 places, of a unit
constexpr int kMostPieces = 8;    // whose x a CTA has at a time
constexpr size_t kSharedBytes = size_t{226} * 1024;

struct Params {
  ExpertGemmArgs a;
  int32_t units;      // of an expert's matrix
  int32_t steps;      // of 64 inputs
  int32_t row_bytes;  // of x in shared memory
  int32_t room;       // rows of x in shared memory
  int32_t places;     // of a part of a tile, at most
  int32_t parts;      // of a tile
  bool again;         // experts have several parts
};

// Up to 32 places of an expert.
struct Piece {
  int expert;
  int place;
  int num_places;
  int row;  // of x in shared memory
};

// What a lane has of the next tiles.
struct Loads {
  uint4 words[kDepth];
  uint32_t scales[kDepth];
};

// Where the lane's numbers and scales of 16 rows and 64 inputs are.
struct Source {
  const std::byte* numbers;
  const std::byte* scales;

  __device__ __forceinline__ void move(int tiles) {
    numbers += tiles * kMxfp4TileBytes;
    scales += tiles * kMxfp4TileBytes;
  }
};

__device__ __forceinline__ void fetch(
    Loads& loads, int i, const Source& from, bool valid, uint64_t policy) {
  uint4& words = loads.words[i];
  asm volatile(
      "{\n"
      ".reg .pred valid;\n"
      "setp.ne.b32 valid, %7, 0;\n"
      "@valid ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%5], %8;\n"
      "@valid ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %4, [%6], %8;\n"
      "}\n"
      : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w), "+r"(loads.scales[i])
      : "l"(from.numbers + i * kMxfp4TileBytes),
        "l"(from.scales + i * kMxfp4TileBytes),
        "r"(valid ? 1 : 0),
        "l"(policy));
}

// A warp's way through its units.
template <LinearEpilogue kEpilogue>
class Warp {
 public:
  __device__ __forceinline__ Warp(const Params& p, uint32_t x)
      : p_(p),
        x_(x),
        lane_(static_cast<int>(threadIdx.x) % 32),
        policy_(p.again ? read_again() : read_once()) {}

  [[nodiscard]] __device__ __forceinline__ Source source(int expert, int unit) const {
    const int64_t tile = int64_t{expert} * ((p_.a.n + 63) / 64) + unit / 4;
    const std::byte* first = static_cast<const std::byte*>(p_.a.w) + tile * p_.steps * kMxfp4TileBytes;
    return {first + unit % 4 * 512 + lane_ * 16,
            first + kMxfp4NumberBytes + unit % 4 * 32 + lane_ / 4 * 4};
  }
  // Loads the first tiles of a unit.
  __device__ __forceinline__ void begin(const Source& from) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      loads_.words[i] = {};
      loads_.scales[i] = 0;
      fetch(loads_, i, from, i < p_.steps, policy_);
    }
  }
  // A unit whose first tiles are on their way; loads those of the next one if there is one.
  __device__ __forceinline__ void run(const Piece& piece, int unit, const Source& next, bool has_next) {
    switch ((piece.num_places + 7) / 8) {
      case 1:
        return run_blocks<1>(piece, unit, next, has_next);
      case 2:
        return run_blocks<2>(piece, unit, next, has_next);
      case 3:
        return run_blocks<3>(piece, unit, next, has_next);
      default:
        return run_blocks<kMostBlocks>(piece, unit, next, has_next);
    }
  }

 private:
  static constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;

  // sum += w * x^T over the 64 inputs of loaded tile i. x: where the lane's part of each block's rows is.
  template <int kBlocks>
  __device__ __forceinline__ void multiply(float (&sum)[kBlocks][4],
                                           int i,
                                           const uint32_t (&x)[kBlocks]) const {
    const Mxfp4Numbers numbers(loads_.words[i], loads_.scales[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs[kBlocks][4];
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        load_matrices(pairs[j], x[j] + i * 128 + half * 64);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t w[4];
        numbers.dequantise(half * 2 + k, w);
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          mma_bf16(sum[j], w, pairs[j][k * 2], pairs[j][k * 2 + 1]);
        }
      }
    }
  }

  template <int kBlocks>
  __device__ __forceinline__ void run_blocks(const Piece& piece,
                                             int unit,
                                             const Source& next,
                                             bool has_next) {
    const int row = unit * 16;
    const ExpertBias bias(p_.a, kGates, piece.expert, row, lane_);
    float sum[kBlocks][4] = {};
    // The row of x and the 16 bytes of it that the lane gives to ldmatrix.
    uint32_t x[kBlocks];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      x[j] = x_ + (piece.row + 8 * j + lane_ % 8) * p_.row_bytes + lane_ / 8 * 16;
    }
    Source from = source(piece.expert, unit);
    int left = p_.steps;
    for (; left >= kDepth; left -= kDepth) {
      from.move(kDepth);
      int loads = min(kDepth, left - kDepth);  // of this unit
      if (left == kDepth) {
        from = next;
        loads = has_next ? kDepth : 0;
      }
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        multiply<kBlocks>(sum, i, x);
        fetch(loads_, i, from, i < loads, policy_);
      }
#pragma unroll
      for (uint32_t& at : x) {
        at += kDepth * 128;
      }
    }
    if (left > 0) {
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        if (i < left) {
          multiply<kBlocks>(sum, i, x);
        }
        fetch(loads_, i, next, has_next && i < p_.steps, policy_);
      }
    }
    write<kBlocks>(sum, bias, piece, row);
  }

  template <int kBlocks>
  __device__ __forceinline__ void write(const float (&sum)[kBlocks][4],
                                        const ExpertBias& bias,
                                        const Piece& piece,
                                        int row) const {
    // Products 4 j to 4 j + 3: row lane / 4 of the unit and places 8 j + lane % 4 * 2, + 1; then the row 8 below.
    // Transposed, a lane has place 8 j + lane / 4 and rows lane % 4 * 2, + 1.
    const int first = kGates ? row / 2 : row;
    const int outputs = kGates ? p_.a.n / 2 : p_.a.n;
    Bf16* y = static_cast<Bf16*>(p_.a.y) + (piece.place + lane_ / 4) * p_.a.y_stride + first +
              lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const float* v = sum[j];
      const bool is_place = 8 * j + lane_ / 4 < piece.num_places;
      Bf16* to = y + 8 * j * p_.a.y_stride;
      if constexpr (kGates) {
        const uint32_t pair =
            transpose_matrix(pack_bf16(bias.gate(v[0], v[2]), bias.gate(v[1], v[3])));
        if (is_place && first < outputs) {
          *reinterpret_cast<uint32_t*>(to) = pair;
        }
      } else {
        const uint32_t upper = transpose_matrix(pack_bf16(bias.upper(v[0]), bias.upper(v[1])));
        const uint32_t lower = transpose_matrix(pack_bf16(bias.lower(v[2]), bias.lower(v[3])));
        if (is_place && first < outputs) {
          *reinterpret_cast<uint32_t*>(to) = upper;
        }
        if (is_place && first + 8 < outputs) {
          *reinterpret_cast<uint32_t*>(to + 8) = lower;
        }
      }
    }
  }

  const Params& p_;
  uint32_t x_;
  int lane_;
  uint64_t policy_;
  Loads loads_;
};

// Lists the pieces from unit `at` on whose rows of x find room. Returns the unit behind them. All threads call it.
__device__ int list_pieces(const Params& p, int at, int end, Piece* pieces) {
  int rows = 0;
  for (int count = 0; at < end && count < kMostPieces; ++count) {
    const int index = at / p.units;
    const int4 entry = __ldcg(reinterpret_cast<const int4*>(p.a.tiles) + 1 + index / p.parts);
    const int first = index % p.parts * p.places;
    const int places = max(0, min(p.places, entry.z - first));
    const int needed = (places + 7) / 8 * 8;
    if (rows + needed > p.room) {
      break;
    }
    if (threadIdx.x == 0) {
      pieces[count] = {entry.x, entry.y + first, places, rows};
    }
    rows += needed;
    at = min(end, (index + 1) * p.units);
  }
  return at;
}

// Begins to copy the pieces' rows of x to shared memory, with zeros behind their ends.
__device__ __forceinline__ void load_x(const Params& p,
                                       uint32_t x,
                                       const Piece* pieces,
                                       int count) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < count; ++i) {
    const Piece piece = pieces[i];
    // A row by as many warps as there are for it.
    const int sharing = piece.num_places >= kWarps ? 1 : piece.num_places >= kWarps / 4 ? 4 : 16;
    for (int r = warp / sharing; r < piece.num_places; r += kWarps / sharing) {
      int64_t row = piece.place + r;
      if (p.a.slots != nullptr) {
        row = __ldcg(p.a.slots + row) / p.a.num_chosen;
      }
      const Bf16* from = static_cast<const Bf16*>(p.a.x) + row * p.a.x_stride;
      const uint32_t to = x + (piece.row + r) * p.row_bytes;
      for (int at = warp % sharing * 32 + lane; at < p.steps * 8; at += sharing * 32) {
        const bool inside = at * 8 < p.a.k;
        copy16_async(to + at * 16, inside ? from + at * 8 : from, inside);
      }
    }
  }
  copy_commit();
}

template <LinearEpilogue kEpilogue>
__global__ void __launch_bounds__(kThreads, 1)
    mxfp4_expert_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char memory[];
  __shared__ Piece pieces[kMostPieces];
  const uint32_t x = (shared_address(memory) + 127) & ~127U;
  const bool lists_are_old = p.a.slots == nullptr;
  if (!lists_are_old) {
    pdl_wait();
    pdl_release();
  }
  const int64_t units = int64_t{__ldcg(p.a.tiles)} * p.parts * p.units;
  int at = static_cast<int>(units * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  bool waited = !lists_are_old;
  Warp<kEpilogue> state(p, x);
  while (at < end) {
    const int behind = list_pieces(p, at, end, pieces);
    const int first = at / p.units;
    __syncthreads();
    int index = at + warp;
    const auto source_of = [&](int unit) {
      return state.source(pieces[unit / p.units - first].expert, unit % p.units);
    };
    if (index < behind) {
      state.begin(source_of(index));
    }
    if (!waited) {
      pdl_wait();
      pdl_release();
      waited = true;
    }
    load_x(p, x, pieces, (behind - 1) / p.units - first + 1);
    copy_wait<0>();
    __syncthreads();
    for (; index < behind; index += kWarps) {
      const Piece piece = pieces[index / p.units - first];
      const bool has_next = index + kWarps < behind;
      const Source next = source_of(has_next ? index + kWarps : index);
      if (piece.num_places > 0) {
        state.run(piece, index % p.units, next, has_next);
      } else if (has_next) {
        state.begin(next);
      }
    }
    at = behind;
    if (at < end) {
      __syncthreads();
    }
  }
  if (!waited) {
    pdl_wait();
  }
}

template <LinearEpilogue kEpilogue>
void launch_instance(Stream& stream, const Params& params) {
  constexpr auto* kKernel = &mxfp4_expert_kernel<kEpilogue>;
  allow_shared_bytes<kKernel>(kSharedBytes);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(stream.device().facts().num_sms));
  shape.block = dim3(kThreads);
  shape.shared_bytes = kSharedBytes;
  launch(stream, "sm90_mxfp4_gemm", shape, kKernel, params);
}

}  // namespace

void sm90_mxfp4_gemm(Stream& stream,
                     const ExpertGemmArgs& args,
                     LinearEpilogue epilogue,
                     int32_t tile_places) {
  Params params{};
  params.a = args;
  params.units = ceil_div(args.n, 16);
  params.steps = ceil_div(args.k, kMxfp4TileCols);
  params.row_bytes = params.steps * 128 + 16;
  params.room = static_cast<int32_t>((kSharedBytes - 128) / static_cast<size_t>(params.row_bytes)) /
                8 * 8;
  WR_CHECK(params.room >= 8, "rows of {} inputs", args.k);
  params.places = std::min(kMostBlocks * 8, params.room);
  params.parts = ceil_div(tile_places, params.places);
  params.again = params.parts > 1;
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch_instance<LinearEpilogue::kSwiGlu>(stream, params);
  } else {
    launch_instance<LinearEpilogue::kStore>(stream, params);
  }
}

}  // namespace warprow::cuda
