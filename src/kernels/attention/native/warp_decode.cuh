// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native/stored_parts.cuh"

// Formula: as part_decode.cuh, for chunks of up to 8 (query, head) pairs per KV head.
// Shapes: NativeParams; head_dim 64 or 128; a cache of bf16 or 8-bit floats.
// Mapping: a persistent grid of CTAs of one warp, eight of them an SM. A warp takes pieces (as in part_decode.cuh) and does all
//   of their work: it loads pairs of boxes by TMA into its own ring, ahead into the next piece, and computes scores, weights and
//   outputs of a tile of 64 keys without other warps. So it waits for no barrier but its loads', and eight warps hide each
//   other's latencies. A piece alone takes longer than in part_decode.cuh, so this kernel is for steps with several pieces an SM.
// Bytes moved: as part_decode.cuh.
// Numerics: as part_decode.cuh, bit for bit.
// Preconditions: as part_decode.cuh, without DecodeRope.
// Origin: own design.
namespace warprow::cuda {
namespace {

template <int kDim, KvFormat kFormat>
struct WarpSizes : PartSizes<kDim, 1, kFormat> {
  using Base = PartSizes<kDim, 1, kFormat>;
  static constexpr int kStageBoxes = 2;  // keys or values of a share of a tile
  static constexpr int kStageBytes = kStageBoxes * Base::kBoxBytes;
  static constexpr int kStages = 24 * 1024 / kStageBytes;
  static constexpr int kShares = kPartBoxes / kStageBoxes;  // of a tile
  static constexpr int kRingBytes = kStages * kStageBytes;
};

// The loads of a warp's pieces, in the order in which it needs them: of each tile the keys, then the values.
template <int kDim, KvFormat kFormat>
struct WarpFeed {
  using Sizes = WarpSizes<kDim, kFormat>;

  const NativeParams& p;
  const TmaMaps& maps;
  Ring<Sizes::kStages> ring;
  uint32_t n = 0;       // stages whose loads have begun
  uint32_t used = 0;    // stages that have been used
  Piece piece = {};     // whose keys and values are loaded next
  int32_t held = 0;     // lane l: the block of box l of 32
  int32_t coming = 0;   // of the next 32
  int32_t share = 0;    // of the piece
  bool values = false;  // else keys

  [[nodiscard]] __device__ int32_t num_shares() const {
    return (piece.item.num_tiles + Sizes::kStageBoxes - 1) / Sizes::kStageBoxes;
  }
  [[nodiscard]] __device__ bool any() const { return share < num_shares(); }
  [[nodiscard]] __device__ bool has_room() const { return n - used < Sizes::kStages; }

  // block: lane l has the block of box l.
  __device__ void begin(const Piece& next, int32_t block) {
    piece = next;
    held = block;
    share = 0;
    values = false;
    expect_blocks(32);
  }
  __device__ void expect_blocks(int32_t first) {
    const DecodeItem& item = piece.item;
    if (first < item.num_tiles) {
      coming = block_of_box(
          p, item.table_begin, item.tile, item.num_tiles, first + static_cast<int>(threadIdx.x));
    }
  }

  // Whether the next load has keys or values of this step.
  [[nodiscard]] __device__ bool is_new() const {
    const int32_t end = min((share + 1) * Sizes::kStageBoxes, piece.item.num_tiles);
    return (piece.item.tile + end) * kDecodeTile > piece.item.num_old_keys;
  }

  // Begins the next load.
  __device__ void load() {
    const int lane = threadIdx.x;
    const int32_t first = share * Sizes::kStageBoxes;
    const int32_t boxes = min(Sizes::kStageBoxes, piece.item.num_tiles - first);
    if (first % 32 == 0 && first > 0 && !values) {
      held = coming;
      expect_blocks(first + 32);
    }
    if (lane == 0) {
      barrier_arrive_expecting(ring.full(n), boxes * Sizes::kBoxBytes);
    }
    __syncwarp();
    const int32_t mine = lane - first % 32;
    if (mine >= 0 && mine < boxes) {
      const int32_t tile = piece.item.tile + first + mine;
      load_box(ring.stage(n) + mine * Sizes::kBoxBytes,
               values ? maps.v : maps.k,
               ring.full(n),
               tile * kDecodeTile - block_of(p, tile) * p.block_size,
               piece.head,
               held);
    }
    ++n;
    // The next of the tile, else its values, else the next tile.
    if (share % Sizes::kShares != Sizes::kShares - 1 && share + 1 < num_shares()) {
      ++share;
    } else if (!values) {
      values = true;
      share -= share % Sizes::kShares;
    } else {
      values = false;
      ++share;
    }
  }
};

// A warp's work on all its pieces.
template <int kDim, KvFormat kFormat>
struct PieceWarp {
  using Sizes = WarpSizes<kDim, kFormat>;
  using State = PartState<kDim, 1, kFormat, 1>;
  using Scores = typename State::Scores;
  static constexpr int kShares = Sizes::kShares;
  static_assert(State::kShareSteps == Sizes::kStageBoxes);

  const NativeParams& p;
  WarpFeed<kDim, kFormat> feed;
  HeadScales scales;
  PieceQueue pieces{nullptr, 0};
  // The piece after the current one: lane l has the l-th integer of its description, and the block of its box l.
  int32_t field = -1;
  int32_t block = 0;
  bool has_next = false;
  bool has_begun = false;  // its loads
  State state;

  // Fetches the description of the k-th piece. It becomes the next one.
  __device__ void find(uint32_t k) {
    int32_t number = PieceQueue::own(k);
    if (k >= 2) {
      number = threadIdx.x == 0 && pieces.dealt() ? pieces.take(p) : pieces.num_pieces;
      number = __shfl_sync(0xffffffffU, number, 0);
    }
    has_next = number < pieces.num_pieces;
    has_begun = false;
    if (has_next) {
      field = pieces.fetch(p, number);
      const DecodeItem item = piece_of_lanes(field).item;
      block = block_of_box(
          p, item.table_begin, item.tile, item.num_tiles, static_cast<int>(threadIdx.x));
    } else if (threadIdx.x == 0 && pieces.dealt()) {
      // The counter wraps to 0 after num_pieces takes. This CTA has taken one time less than it has pieces: take once more.
      static_cast<void>(pieces.take(p));
    }
  }

  // Begins as many loads as there is room for.
  __device__ void fill() {
    while (feed.has_room()) {
      if (!feed.any()) {
        if (!has_next || has_begun) {
          return;
        }
        has_begun = true;
        feed.begin(piece_of_lanes(field), block);
      }
      feed.load();
    }
  }
  // Uses `stages` stages up.
  __device__ void release(uint32_t stages) {
    fence_async_proxy();  // ldmatrix read them
    __syncwarp();
    feed.used += stages;
    fill();
  }

  // Adds a tile from a position on.
  __device__ void add_tile(const DecodeItem& item, int32_t position) {
    const int32_t boxes = item.tile + item.num_tiles - position / kDecodeTile;
    const int shares = min(kShares, (boxes + Sizes::kStageBoxes - 1) / Sizes::kStageBoxes);
    const auto& ring = feed.ring;
    Scores s[kShares];
    ring.wait_full(feed.used);
    if (shares == kShares) {
      ring.wait_full(feed.used + 1);
    }
    state.score(s[0], ring.stage(feed.used), 0);
    state.score(s[1], ring.stage(feed.used + 1), 0);  // masked if it has no keys
    release(shares);
    float top[2] = {kNoMax, kNoMax};
#pragma unroll
    for (int i = 0; i < kShares; ++i) {
      state.mask(s[i], p, item, position, i, scales);
      State::raise(top, s[i], 0);
    }
    State::raise_to_lanes(top);
    state.rescale({top[0], top[1]}, 0, scales.exponent);
    const float base[2] = {__fmul_rn(state.part.max[0][0], scales.exponent),
                           __fmul_rn(state.part.max[0][1], scales.exponent)};
#pragma unroll
    for (int i = 0; i < kShares; ++i) {
      uint32_t two[State::kShareSteps][2];
      State::make_weights(two, s[i], 0, scales.exponent, base);
#pragma unroll
      for (int m = 0; m < State::kShareSteps; ++m) {
        state.weights[0][State::kShareSteps * i + m][0] = two[m][0];
        state.weights[0][State::kShareSteps * i + m][1] = two[m][1];
      }
    }
    state.sum_weights(0);
    const int32_t valid = item.seq_len - position;
    ring.wait_full(feed.used);
    state.template add_values<0, State::kShareSteps>(ring.stage(feed.used), valid);
    if (shares == kShares) {
      ring.wait_full(feed.used + 1);
      state.template add_values<State::kShareSteps, State::kShareSteps>(
          ring.stage(feed.used + 1), valid - State::kShareSteps * 16);
    }
    release(shares);
  }

  __device__ void run() {
    pieces.num_pieces = __ldcg(&p.scratch.counts->num_pieces);
    find(0);
    if (has_next) {
      feed.begin(piece_of_lanes(field), block);
      while (p.settled && feed.any() && feed.has_room() && !feed.is_new()) {
        feed.load();
      }
    }
    pdl_wait();
    pdl_release();
    for (uint32_t k = 1; has_next; ++k) {
      const Piece piece = piece_of_lanes(field);
      find(k);
      fill();
      state.load_q(p, piece);
      if constexpr (kFormat != KvFormat::kBF16) {
        scales = head_scales<kFormat>(p, piece.head);
      }
      const int32_t parts =
          add_parts<1>(state, p, piece, scales.exponent, [&](int32_t position, int32_t /*tiles*/) {
            add_tile(piece.item, position);
          });
      if (piece.item.num_parts > 1) {
        if (!arrive(p, piece, parts)) {
          continue;
        }
        merge_stored(state, p, piece, scales.exponent);
      }
      state.write(p, piece, scales);
    }
  }
};

template <int kDim, KvFormat kFormat>
__global__ void __launch_bounds__(32, kDecodeWarpsPerSm) warp_decode_kernel(
    const NativeParams p, const __grid_constant__ TmaMaps maps) {
  using Sizes = WarpSizes<kDim, kFormat>;
  extern __shared__ __align__(1024) char memory[];
  __shared__ uint64_t full[Sizes::kStages];
  const Ring<Sizes::kStages> ring{shared_address(full), shared_address(memory), Sizes::kStageBytes};
  if (threadIdx.x == 0) {
    for (int i = 0; i < Sizes::kStages; ++i) {
      barrier_init(ring.full(i), 1);
    }
    fence_async_proxy();
  }
  __syncwarp();
  if (!p.settled) {
    pdl_wait();
  }
  PieceWarp<kDim, kFormat> warp{
      .p = p, .feed = {.p = p, .maps = maps, .ring = ring}, .scales = head_scales<kFormat>(p, 0)};
  warp.run();
}

}  // namespace

template <int kDim, KvFormat kFormat>
void native_warp_decode(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  using Sizes = WarpSizes<kDim, kFormat>;
  constexpr auto* kKernel = &warp_decode_kernel<kDim, kFormat>;
  const TmaMaps maps{part_tile_map<kDim, kFormat>(params, params.k),
                     part_tile_map<kDim, kFormat>(params, params.v)};
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(num_blocks));
  shape.block = dim3(32);
  shape.shared_bytes = Sizes::kRingBytes;
  allow_shared_bytes<kKernel>(shape.shared_bytes);
  launch(stream, "attention_decode", shape, kKernel, params, maps);
}
template void native_warp_decode<WR_HEAD_DIM, KvFormat::WR_KV_FORMAT>(Stream& stream,
                                                                      const NativeParams& params,
                                                                      int32_t num_blocks);

}  // namespace warprow::cuda
