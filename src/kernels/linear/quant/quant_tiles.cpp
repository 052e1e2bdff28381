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

void put_bytes(PackedKind kind, const TileNumbers& tile, uint8_t* to) {
  for (int64_t step = 0; step < kCols / 16; ++step) {
    for (int64_t lane = 0; lane < 32; ++lane) {
      const int64_t u = lane / 4;
      for (int64_t word = 0; word < 2; ++word) {
        const int64_t c = step * 16 + lane % 4 * 2 + word * 8;
        uint32_t bytes = 0;
        for (int64_t next = 0; next < 2; ++next) {
          const uint32_t pair = tile.at[u + 8][c + next] | uint32_t{tile.at[u][c + next]} << 8;
          bytes |= pair << (16 * next);
        }
        bytes = kind == PackedKind::kF8 ? quant_f8_word(bytes) : bytes;
        std::memcpy(
            to + step / 2 * 512 + lane * 16 + step % 2 * 8 + word * 4, &bytes, sizeof(bytes));
      }
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

// Bits 4 and 5.
void put_upper_bits(const TileNumbers& tile, uint8_t* to) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    const int64_t u = lane / 4;
    for (int64_t pair = 0; pair < kCols / 32; ++pair) {
      uint32_t word = 0;
      for (int64_t at = 0; at < 16; ++at) {  // second 16 inputs, next input, nibble
        const int64_t j = at % 4;
        const int64_t next = at / 4 % 2;
        const int64_t c = pair * 32 + at / 8 * 16 + lane % 4 * 2 + next + j / 2 * 8;
        const uint32_t upper = tile.at[u + j % 2 * 8][c] >> 4;
        word |= std::rotl(upper, static_cast<int>(4 + 4 * j + 2 * next + at / 8 * 16));
      }
      std::memcpy(to + lane * 16 + pair * 4, &word, sizeof(word));
    }
  }
}

void put_numbers(PackedKind kind, const TileNumbers& tile, uint8_t* to) {
  if (kind == PackedKind::kQ4 || kind == PackedKind::kTable || kind == PackedKind::kQ6) {
    put_nibbles(tile, to);
    if (kind == PackedKind::kQ6) {
      put_upper_bits(tile, to + quant_number_bytes(PackedKind::kQ4));
    }
    return;
  }
  put_bytes(kind, tile, to);
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
  // Exact in double. A float32 that keeps what it lacks in its last bit (rounding to odd) rounds to the right bf16.
  const double sum =
      static_cast<double>(number) * static_cast<double>(upper) + static_cast<double>(rest);
  auto rounded = static_cast<float>(sum);
  const double missing = sum - static_cast<double>(rounded);
  if (missing != 0.0 && (std::bit_cast<uint32_t>(rounded) & 1U) == 0) {
    rounded = std::nextafter(rounded, missing > 0.0 ? HUGE_VALF : -HUGE_VALF);
  }
  return f32_to_bf16(rounded);
}

uint16_t quant_weight(float number, float scale, float bias) {
  return f32_to_bf16(number * scale + bias);
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
  const bool floats = weight.scales == ScaleForm::kF32;
  const bool bf16 = weight.scales == ScaleForm::kBF16;
  WR_CHECK(floats ? !weight.has_zero_points : !weight.has_bias);
  WR_CHECK(!bf16 || weight.kind == PackedKind::kQ4 || weight.kind == PackedKind::kQ8 ||
           weight.kind == PackedKind::kF8);
  WR_CHECK(weight.kind != PackedKind::kTable ||
           (floats && !weight.has_bias && weight.numbers != nullptr && weight.scale_unit == 1.0F));
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
    const int64_t scale_bytes = quant_scale_bytes(weight) + (weight.has_bias ? 4 : 0);
    uint8_t* zeros = scales + of_tile * kRows * scale_bytes;
    for (int64_t g = 0; g < of_tile; ++g) {
      const int64_t group = first / weight.group + g;
      for (int64_t r = 0; r < kRows; ++r) {
        const bool there = r < count && group < groups;
        const int64_t from = r * groups + group;
        const uint32_t scale =
            !there   ? 0
            : floats ? std::bit_cast<uint32_t>(quant_float_scale(weight.kind, r, rows.scales[from]))
                     : quant_scale_word(weight.kind, r, rows.scales[from]);
        uint8_t* at = scales + (g * kRows + r) * scale_bytes;
        if (bf16) {
          WR_CHECK((scale & 0xffffU) == 0, "{} is no bf16", rows.scales[from]);
          const auto upper = static_cast<uint16_t>(scale >> 16);
          std::memcpy(at, &upper, sizeof(upper));
        } else {
          std::memcpy(at, &scale, sizeof(scale));
        }
        if (weight.has_bias) {
          const float bias = there ? rows.biases[from] / kFloatTimes : 0.0F;
          std::memcpy(at + sizeof(scale), &bias, sizeof(bias));
        }
        if (weight.has_zero_points) {
          zeros[g * kRows + r] = there ? rows.zeros[from] : 0;
        }
      }
    }
  }
}

}  // namespace warprow
