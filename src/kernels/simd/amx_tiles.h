// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Tile registers of Intel's AMX. The compiler does not allocate them: code names them by number. Included by files compiled
// for AMX only.
//
// Origin: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter "Programming with Intel AMX".

namespace warprow::cpu {
namespace {

inline constexpr int kTileRows = 16;

// Rows and bytes a row of each of the eight tiles, at most 16 and 64. Both are 0 for an unused tile, else both are positive.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t num_rows, int64_t num_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(num_bytes);
  }
};

// Configures this thread's tiles within its scope, and then releases them, so that a context switch need not save them.
class ScopedTiles {
 public:
  explicit ScopedTiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
  ~ScopedTiles() { asm volatile("tilerelease"); }
  ScopedTiles(const ScopedTiles&) = delete;
  ScopedTiles& operator=(const ScopedTiles&) = delete;
};

// Row r of the tile is at p + r * stride bytes.
template <int kTile>
void load_tile(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void store_tile(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// C += A * B over s8: lane n of row m gets the sum over bytes j of dwords i, A[m][4i + j] * B[i][4n + j].
template <int kC, int kA, int kB>
void dot_s8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
// C += A * B over bf16 with float32 sums: two chains of fused multiply-adds from 0, over the even inputs and over the odd
// ones of the tiles; then their sum is added to C. Values below 1e-38 are taken as 0.
template <int kC, int kA, int kB>
void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace warprow::cpu
