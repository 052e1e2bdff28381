// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Cuts a number of rows into parts of nearly equal height, for loops that are compiled once for each instruction set. Only
// templates over the caller's lambda, whose type is local to its file, so that files of different sets share no function.
namespace warprow {

// Calls part(first, height) for parts of at most `most` of n rows. The first parts are the higher ones by at most 1.
template <typename Part>
inline void for_each_even_part(int64_t n, int64_t most, const Part& part) {
  for (int64_t first = 0, left = (n + most - 1) / most; left > 0; --left) {
    const int64_t height = (n - first + left - 1) / left;
    part(first, height);
    first += height;
  }
}

// Calls tile.template operator()<height>(first) for 1 <= height <= kMost.
template <int kMost, typename Tile>
inline void with_height(int64_t height, int64_t first, const Tile& tile) {
  if constexpr (kMost > 1) {
    if (height < kMost) {
      with_height<kMost - 1>(height, first, tile);
      return;
    }
  }
  tile.template operator()<kMost>(first);
}

// The same as for_each_even_part, with the height known when compiling: tile.template operator()<height>(first).
template <int kMost, typename Tile>
inline void for_each_even_tile(int64_t n, const Tile& tile) {
  for_each_even_part(n, kMost, [&](int64_t first, int64_t height) __attribute__((always_inline)) {
    with_height<kMost>(height, first, tile);
  });
}

}  // namespace warprow
