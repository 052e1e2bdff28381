// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/quant/quant_tiles.h"

#include "base/check.h"
#include "base/dtype.h"
#include "base/math.h"
#include "kernels/linear/fp8/fp8_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace warprow {
namespace {

constexpr int64_t kRows = kQuantTileRows;
constexpr int64_t kCols = kQuantTileCols;

// Rows by inputs of a tile, zeros behind the ends.
struct TileNumbers {
  uint8_t at[kRows][kCols];
};

// The bytes of a lane's word for two inputs from column c on.
uint32_t bytes_at(const TileNumbers& tile, int64_t lane, int64_t c) {
  const int64_t u = lane / 4;
  uint32_t bytes = 0;
  for (int64_t next = 0; next < 2; ++next) {
    const uint32_t pair = tile.at[u + 8][c + next] | uint32_t{tile.at[u][c + next]} << 8;
    bytes |= pair << (16 * next);
  }
  return bytes;
}

void put_bytes(PackedKind kind, const TileNumbers& tile, uint8_t* to) {
  for (int64_t step = 0; step < kCols / 16; ++step) {
    for (int64_t lane = 0; lane < 32; ++lane) {
      for (int64_t word = 0; word < 2; ++word) {
        uint32_t bytes = bytes_at(tile, lane, step * 16 + lane % 4 * 2 + word * 8);
        bytes = kind == PackedKind::kF8 ? quant_f8_word(bytes) : bytes;
        std::memcpy(
            to + step / 2 * 512 + lane * 16 + step % 2 * 8 + word * 4, &bytes, sizeof(bytes));
      }
    }
  }
}

void put_six_bits(const TileNumbers& tile, uint8_t* to) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    for (int64_t i = 0; i < kCols / 32 * 3; ++i) {  // words
      const int64_t first = i / 3 * 32 + lane % 4 * 2;
      const uint32_t own = bytes_at(tile, lane, first + i % 3 * 8);
      const uint32_t fourth = bytes_at(tile, lane, first + 24);
      const uint32_t word = own | (fourth >> (2 * (i % 3)) & 0x03030303U) << 6;
      std::memcpy(to + i / 4 * 512 + lane * 16 + i % 4 * 4, &word, sizeof(word));
    }
  }
}

void put_nibbles(const TileNumbers& tile, uint8_t* to) {
  for (int64_t step = 0; step < kCols / 16; ++step) {
    for (int64_t lane = 0; lane < 32; ++lane) {
      const int64_t u = lane / 4;
      const int64_t c = step * 16 + lane % 4 * 2;
      uint32_t word = 0;
      for (int64_t next = 0; next < 2; ++next) {
        for (int64_t j = 0; j < 4; ++j) {
          const uint32_t number = tile.at[u + j % 2 * 8][c + next + j / 2 * 8];
          word |= (number & 15U) << (16 * next + 4 * j);
        }
      }
      std::memcpy(to + step / 4 * 512 + lane * 16 + step % 4 * 4, &word, sizeof(word));
    }
  }
}

void put_numbers(PackedKind kind, const TileNumbers& tile, uint8_t* to) {
  switch (kind) {
    case PackedKind::kQ4:
    case PackedKind::kTable:
      return put_nibbles(tile, to);
    case PackedKind::kQ6:
      return put_six_bits(tile, to);
    default:
      return put_bytes(kind, tile, to);
  }
}

// sum, exact, rounded once to bf16: a float32 that keeps what it lacks in its last bit (rounding to odd) rounds to the right bf16.
uint16_t rounded_once(double sum) {
  auto rounded = static_cast<float>(sum);
  const double missing = sum - static_cast<double>(rounded);
  if (missing != 0.0 && (std::bit_cast<uint32_t>(rounded) & 1U) == 0) {
    rounded = std::nextafter(rounded, missing > 0.0 ? HUGE_VALF : -HUGE_VALF);
  }
  return f32_to_bf16(rounded);
}

}  // namespace

QuantCodes quant_codes(const PackedWeight& weight) {
  QuantCodes codes;
  codes.zero_point = static_cast<uint32_t>(weight.zero_point);
  if (weight.kind == PackedKind::kTable) {
    codes.zero_point = 128;
    for (int i = 0; i < 16; ++i) {
      const auto more = static_cast<uint32_t>(weight.numbers[i] + 128);
      codes.table[i / 4] |= more << (i % 4 * 8);
    }
  }
  return codes;
}

uint16_t quant_weight(float number, float scale) {
  const float upper = bf16_to_f32(f32_to_bf16(scale));
  const float lower = bf16_to_f32(f32_to_bf16(scale - upper));
  const float rest = bf16_to_f32(f32_to_bf16(number * lower));
  return rounded_once(static_cast<double>(number) * static_cast<double>(upper) +
                      static_cast<double>(rest));
}

uint16_t quant_weight(float number, float scale, float bias) {
  return rounded_once(static_cast<double>(number) * static_cast<double>(scale) +
                      static_cast<double>(bias));
}

size_t quant_row_bytes(const PackedWeight& weight) {
  if (weight.kind == PackedKind::kF8F8) {
    return static_cast<size_t>(fp8_unit_bytes(weight.k, weight.inputs == F8Inputs::kGroup));
  }
  return static_cast<size_t>(ceil_div<int64_t>(weight.k, kCols)) *
         static_cast<size_t>(quant_tile_bytes(weight));
}

size_t quant_tiles_bytes(const PackedWeight& weight) {
  return static_cast<size_t>(ceil_div<int64_t>(weight.n, kRows)) * quant_row_bytes(weight);
}

void pack_quant_tiles(const PackedWeight& weight,
                      int64_t count,
                      const QuantRows& rows,
                      std::span<std::byte> out) {
  WR_CHECK(count >= 1 && count <= kRows, "{} rows", count);
  WR_CHECK_EQ(out.size(), quant_row_bytes(weight));
  if (weight.kind == PackedKind::kF8F8) {
    pack_fp8_unit(weight, count, rows.numbers, rows.scales, out);
    return;
  }
  const bool table = weight.kind == PackedKind::kTable;
  const bool bf16 = weight.scales == ScaleForm::kBF16;
  WR_CHECK(has_quant_scales(weight), "kind {}", static_cast<int>(weight.kind));
  WR_CHECK(!table || (weight.numbers != nullptr && weight.scale_unit == 1.0F));
  WR_CHECK(has_quant_group(weight), "{}", weight.group);
  const int64_t k = weight.k;
  const int64_t groups = ceil_div<int64_t>(k, weight.group);
  const int64_t of_tile = kCols / weight.group;
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  for (int64_t first = 0; first < k; first += kCols, to += quant_tile_bytes(weight)) {
    TileNumbers tile = {};
    const int64_t cols = std::min(kCols, k - first);
    for (int64_t r = 0; r < count; ++r) {
      std::copy_n(rows.numbers + r * k + first, cols, tile.at[r]);
    }
    put_numbers(weight.kind, tile, to);
    uint8_t* scales = to + quant_number_bytes(weight.kind);
    const int64_t scale_bytes = quant_scale_bytes(weight);
    uint8_t* zeros = scales + of_tile * kRows * scale_bytes;
    for (int64_t g = 0; g < of_tile; ++g) {
      const int64_t group = first / weight.group + g;
      for (int64_t r = 0; r < kRows; ++r) {
        const bool there = r < count && group < groups;
        const int64_t from = r * groups + group;
        uint32_t word = !there  ? 0
                        : table ? std::bit_cast<uint32_t>(rows.scales[from])
                                : quant_scale_word(weight.kind, r, rows.scales[from]);
        if (bf16) {
          WR_CHECK((word & 0xffffU) == 0 || !std::isfinite(rows.scales[from]),
                   "{} is no bf16",
                   rows.scales[from]);
          word >>= 16;
        }
        if (weight.has_bias && there) {
          const auto bias = std::bit_cast<uint32_t>(rows.biases[from] / kIntegerTimes);
          WR_CHECK((bias & 0xffffU) == 0, "{} is no bf16", rows.biases[from]);
          word |= bias;
        }
        std::memcpy(
            scales + (g * kRows + r) * scale_bytes, &word, static_cast<size_t>(scale_bytes));
        if (weight.has_zero_points) {
          zeros[g * kRows + r] = there ? rows.zeros[from] : 0;
        }
      }
    }
  }
}

}  // namespace warprow
