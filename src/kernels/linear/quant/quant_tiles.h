// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/hd.h"
#include "kernels/linear/packed_weight.h"

#include <cstddef>
#include <cstdint>
#include <span>

// The form in which CUDA keeps a quantised matrix on Hopper. That of kF8F8 is in kernels/linear/fp8/fp8_tiles.h; the functions
// below serve it too.
//
// A tile is 16 rows by 128 inputs. Tiles lie by rows, then by inputs; what is behind the ends is zero.
//
// First come the numbers, in the order in which wgmma takes a 16 x 16 part of its operand A from the registers of a warp.
// Lane l has rows u = l / 4 and u + 8, and inputs c = l % 4 * 2, c + 1, c + 8 and c + 9 of each 16. It has a word for each
// register pair or quadruple, four words at a time (uint4), lane after lane:
//   8 bits: two words for 16 inputs. Word 0 has rows u and u + 8 at c and c + 1, word 1 at c + 8 and c + 9. Byte 1 is
//           (u, c), byte 3 (u, c + 1), byte 0 (u + 8, c), byte 2 (u + 8, c + 1). Of kF8 the bits are in quant_f8_word's order.
//   4 bits: one word for 16 inputs. Nibbles 0 to 3 are (u, c), (u + 8, c), (u, c + 8), (u + 8, c + 8); nibbles 4 to 7 the
//           same one input further.
//   6 bits: three words for 32 inputs. As with 8 bits, four words would have the numbers at c and c + 1, at c + 8 and c + 9, and the
//           same 16 inputs further. The first three have them in the lower six bits of bytes. A byte's upper two bits, word by word,
//           are bits 0 and 1, 2 and 3, and 4 and 5 of the fourth's number there.
// Then come the scales in one of three forms:
//   kF16: [128 / group][16 rows], each as two bf16 (quant_scale_word); then, if a row's groups have zero points, these as
//         bytes, likewise. kF8, kQ4 and kQ8.
//   kBF16: the same with one bf16 each, or, if groups have biases, with the bias as a bf16 behind it. kF8, kQ4, kQ6 and kQ8.
//   kF32: [128 / group][16 rows], each a float32. kTable.
//
// Kernels take a weight as the bf16 quant_weight. With kBF16 it is the exact scale * number + bias rounded to bf16; with kF16, too, but
// in rare cases one unit in the last place off: if the value is within 2^-8 units of the middle between two bf16 numbers. With kF32
// it is the float32 product rounded to bf16.
namespace warprow {

inline constexpr int32_t kQuantTileRows = 16;
inline constexpr int32_t kQuantTileCols = 128;

// Numbers are e4m3 (kF8; OCP 8-bit floating point, 2023), or q, a byte (kQ8), six bits (kQ6) or a nibble (kQ4);
// w = scale * (q - zero point) (+ bias). Of kTable a nibble is a place in a table; w = scale * numbers[place].
WR_HD constexpr int32_t quant_number_bytes(PackedKind kind) {
  const bool nibbles = kind == PackedKind::kQ4 || kind == PackedKind::kTable;
  const int32_t bits = nibbles ? 4 : kind == PackedKind::kQ6 ? 6 : 8;
  return kQuantTileRows * kQuantTileCols / 8 * bits;
}
// The order of a word's bits for kF8, from four e4m3 numbers as bytes. In each half the number of row u has its sign at bit 15 and
// the rest at bits 10 to 4, as a bf16 has them. That of row u + 8 has its exponent at bits 14 to 11 and its fraction at bits 2 to
// 0; its sign is bit 3 of the other half. So a rotation by 4 bits brings sign and exponent to their places, a shift the fraction.
WR_HD constexpr uint32_t quant_f8_word(uint32_t bytes) {
  uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    const uint32_t lower = bytes >> (16 * half) & 0xffU;  // of row u + 8
    const uint32_t upper = bytes >> (16 * half + 8) & 0xffU;
    const uint32_t own =
        (upper & 0x80U) << 8 | (upper & 0x7fU) << 4 | (lower & 0x78U) << 8 | (lower & 7U);
    word |= own << (16 * half) | (lower >> 7) << (16 * (1 - half) + 3);
  }
  return word;
}
// Whether CUDA keeps matrices of this kind in the tiles of this file.
constexpr bool has_quant_tiles(PackedKind kind) {
  return kind == PackedKind::kF8 || kind == PackedKind::kQ8 || kind == PackedKind::kQ6 ||
         kind == PackedKind::kQ4 || kind == PackedKind::kTable;
}
// Whether tiles of this kind can have the weight's scales, biases and zero points.
constexpr bool has_quant_scales(const PackedWeight& weight) {
  if (weight.kind == PackedKind::kTable) {
    return weight.scales == ScaleForm::kF32 && !weight.has_bias && !weight.has_zero_points;
  }
  return weight.scales == ScaleForm::kBF16 ||
         (weight.scales == ScaleForm::kF16 && weight.kind != PackedKind::kQ6 && !weight.has_bias);
}
// Whether tiles with these scales can have the weight's groups.
constexpr bool has_quant_group(const PackedWeight& weight) {
  const bool small = weight.kind == PackedKind::kQ6 || weight.kind == PackedKind::kTable ||
                     (weight.scales == ScaleForm::kBF16 && !weight.has_zero_points);
  const bool large =
      weight.kind != PackedKind::kQ6 && weight.kind != PackedKind::kTable && !weight.has_bias;
  return weight.group == 32 || (weight.group == 16 && small) ||
         ((weight.group == 64 || weight.group == kQuantTileCols) && large);
}
// Whether kernels take the weight's zero point and biases (Bf16Scale and Bf16BiasScale in quant_numbers.cuh).
constexpr bool has_quant_codes(const PackedWeight& weight) {
  return (weight.zero_point & (weight.zero_point - 1)) == 0 &&
         !(weight.has_bias && (weight.zero_point != 0 || weight.has_zero_points));
}
// What a tile has of a row in a group: a bf16, two, one with a bias, or a float32.
enum class QuantScales : uint8_t { kOne, kTwo, kBiased, kFloat };
constexpr QuantScales quant_scales(const PackedWeight& weight) {
  return weight.kind == PackedKind::kTable  ? QuantScales::kFloat
         : weight.scales == ScaleForm::kF16 ? QuantScales::kTwo
         : weight.has_bias                  ? QuantScales::kBiased
                                            : QuantScales::kOne;
}
// Its bytes, without a zero point.
constexpr int32_t quant_scale_bytes(QuantScales scales) {
  return scales == QuantScales::kOne ? 2 : 4;
}
constexpr int32_t quant_scale_bytes(const PackedWeight& weight) {
  return quant_scale_bytes(quant_scales(weight));
}
constexpr int32_t quant_tile_bytes(const PackedWeight& weight) {
  const int32_t of_group = quant_scale_bytes(weight) + (weight.has_zero_points ? 1 : 0);
  const int32_t bytes =
      quant_number_bytes(weight.kind) + kQuantTileCols / weight.group * kQuantTileRows * of_group;
  return bytes <= 2048 ? bytes : (bytes + 31) / 32 * 32;  // see quant_tile_pieces
}

// Equal pieces of a tile that a tensor map can have: of up to 256 words of 8 bytes and multiples of 16 bytes.
constexpr int32_t quant_tile_pieces(int32_t tile_bytes) { return tile_bytes <= 2048 ? 1 : 2; }

// What a matrix's stored codes stand for: number = code - zero_point. kTable: a code is the byte at its place in `table`, which
// holds numbers + 128, four in a word, the first one lowest; zero_point is 128.
struct QuantCodes {
  uint32_t zero_point = 0;
  uint32_t table[4] = {};
};
[[nodiscard]] QuantCodes quant_codes(const PackedWeight& weight);

// Tiles with kF16 hold scales of magnitudes below this; with kBF16 those of kF8, too. Others are below 2^26, as GGUF's halves times 6
// bits are.
inline constexpr float kQuantScaleLimit = 128.0F;
// Kernels make weights of integers divided by this (quant_numbers.cuh).
inline constexpr float kIntegerTimes = 0x1p48F;
// A scale in a tile with kF16: the upper half is the nearest bf16, the lower half the bf16 nearest to what is missing. With kBF16: the
// upper half alone. row: of the tile. A bias in a tile is bias / kIntegerTimes.
// Kernels read numbers as multiples of tiny floats, so scales are that much larger: e4m3 numbers as 2^-120 times what they are; the
// others as 2^-133 times, nibbles of the lower eight rows as 2^-129 times (quant_numbers.cuh).
[[nodiscard]] WR_HD inline uint32_t quant_scale_word(PackedKind kind, int64_t row, float scale) {
  const bool lower_rows = kind == PackedKind::kQ4 && row >= kQuantTileRows / 2;
  const float stored = scale * (kind == PackedKind::kF8 ? 0x1p120F
                                : lower_rows            ? 0x1p81F
                                                        : 0x1p85F);  // 2^133 / kIntegerTimes
  const uint16_t upper = f32_to_bf16(stored);
  const uint16_t lower = f32_to_bf16(stored - bf16_to_f32(upper));
  return static_cast<uint32_t>(upper) << 16 | lower;
}
// number: the e4m3 number, or q less its zero point.
[[nodiscard]] uint16_t quant_weight(float number, float scale);
// The same of kBF16 with a bias, both bf16. kTable's weights are this with a bias of -0, if the scale is any float32.
[[nodiscard]] uint16_t quant_weight(float number, float scale, float bias);

// Bytes of a matrix.
[[nodiscard]] size_t quant_tiles_bytes(const PackedWeight& weight);

// Rows to be packed: numbers [count, k], scales, zeros and biases [count, ceil(k / group)]. q as it is stored, not yet less
// its zero point. zeros: only with has_zero_points. biases: only with has_bias.
struct QuantRows {
  const uint8_t* numbers = nullptr;
  const float* scales = nullptr;
  const uint8_t* zeros = nullptr;
  const float* biases = nullptr;
};

// Packs up to 16 rows, which begin a tile, into tiles of all inputs: quant_row_bytes at `out`.
void pack_quant_tiles(const PackedWeight& weight,
                      int64_t count,
                      const QuantRows& rows,
                      std::span<std::byte> out);
// Bytes of the tiles of 16 rows.
[[nodiscard]] size_t quant_row_bytes(const PackedWeight& weight);

}  // namespace warprow
