// SPDX-License-Identifier: Apache-2.0
// The part of paged_attention_loops.inl for AMX: the dot products of paged_attention_bf16.inl by tiles of 16 lines. The
// transposed keys and the interleaved values are tiles as they lie. Sums have the order of the tiles (amx_tiles.h): over
// 32 elements of the head, or 32 keys, at a time. Always all keys of a tile take part, whose weights are 0 where a line
// does not see them, so that the order does not depend on the number of lines.
#include "kernels/simd/amx_tiles.h"

namespace warprow::cpu {
namespace {

constexpr int kPairsOfTile = 16;

inline bool takes_amx(const AttentionTile& a) {
  return takes_bf16(a) && a.num_queries * a.group <= kAmxQueryLines;
}

// Sums in tiles 0 .. 3: tile of lines + 2 * group of keys or elements. Lines in 4 and 5, keys or values in 6 and 7.
inline TileShapes shapes_of_lines(int lines) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    const int rows = tile >= 6       ? kPairsOfTile
                     : tile % 2 == 0 ? least(lines, kTileRows)
                                     : most(lines - kTileRows, 0);
    shapes.set(tile, rows, rows > 0 ? 64 : 0);
  }
  return shapes;
}

// Adds one step of pairs. Second: the lines fill more than one tile.
template <bool Second>
inline void dot_step(
    const float* lines, int64_t line_stride, const float* a, const float* b, int64_t stride) {
  load_tile<4>(lines, line_stride * 4);
  load_tile<6>(a, stride * 4);
  load_tile<7>(b, stride * 4);
  dot_bf16<0, 4, 6>();
  dot_bf16<2, 4, 7>();
  if constexpr (Second) {
    load_tile<5>(lines + kTileRows * line_stride, line_stride * 4);
    dot_bf16<1, 5, 6>();
    dot_bf16<3, 5, 7>();
  }
}

// Stores the dot products of all lines with the tile's keys in w.weights.
template <bool Second>
inline void dot_tiles(const Work& w) {
  const int pairs = w.dim_k / 2;
  for (int g = 0; g < kKeyTile / kLanes; g += 2) {
    zero_tile<0>();
    zero_tile<2>();
    if constexpr (Second) {
      zero_tile<1>();
      zero_tile<3>();
    }
    for (int d = 0; d < pairs; d += kPairsOfTile) {
      const float* keys = w.keys + (int64_t{g} * pairs + d) * kLanes;
      dot_step<Second>(w.q + d, pairs, keys, keys + int64_t{pairs} * kLanes, kLanes);
    }
    float* dots = w.weights + g * kLanes;
    store_tile<0>(dots, kKeyTile * 4);
    store_tile<2>(dots + kLanes, kKeyTile * 4);
    if constexpr (Second) {
      store_tile<1>(dots + kTileRows * kKeyTile, kKeyTile * 4);
      store_tile<3>(dots + kTileRows * kKeyTile + kLanes, kKeyTile * 4);
    }
  }
}

// acc += weights x values for all lines.
template <bool Second>
inline void add_tiles(const Work& w) {
  const int64_t stride = w.dim_v;
  for (int d = 0; d < w.dim_v; d += 2 * kLanes) {
    float* acc = w.part.acc + d;
    float* acc_second = acc + kTileRows * stride;
    load_tile<0>(acc, stride * 4);
    load_tile<2>(acc + kLanes, stride * 4);
    if constexpr (Second) {
      load_tile<1>(acc_second, stride * 4);
      load_tile<3>(acc_second + kLanes, stride * 4);
    }
    for (int j = 0; j < kKeyTile / 2; j += kPairsOfTile) {
      const float* values = w.values + j * stride + d;
      dot_step<Second>(w.weights + j, kKeyTile, values, values + kLanes, stride);
    }
    store_tile<0>(acc, stride * 4);
    store_tile<2>(acc + kLanes, stride * 4);
    if constexpr (Second) {
      store_tile<1>(acc_second, stride * 4);
      store_tile<3>(acc_second + kLanes, stride * 4);
    }
  }
}

template <bool Second>
void run_amx_lines(const AttentionTile& a, const Work& w, const Tiles& tiles) {
  constexpr Span kWhole = {0, kKeyTile};
  const TileShapes shapes = shapes_of_lines(w.lines);
  const ScopedTiles scope(shapes);
  round_to_pairs(w.q, w.lines * w.dim_k, w.q);
  Ahead ahead;
  for (int base = tiles.first_base(); base < tiles.end; base += kKeyTile) {
    int64_t at[kKeyTile];
    locate_keys(a, base, tiles.in_tile(base), at);
    look_ahead(a, tiles, base, ahead);
    transpose_keys(a, w, at, kWhole, ahead);
    dot_tiles<Second>(w);
    softmax_lines<PairWeights>(a, w, base);
    interleave_values(a, w, at, kWhole, ahead);
    add_tiles<Second>(w);
    end_part(a, w, tiles, base);
  }
}

void run_amx(const AttentionTile& a, const Work& w, const Tiles& tiles) {
  (w.lines > kTileRows ? run_amx_lines<true> : run_amx_lines<false>)(a, w, tiles);
}

}  // namespace
}  // namespace warprow::cpu
