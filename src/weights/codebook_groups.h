// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace warprow {

// Decoders of one super-block (256 elements) of GGUF's IQ types with codebooks. The layouts are ggml's, as in
// quant_groups.cpp. unpack_* writes q; split_scales_* writes the block's half and a factor for each group:
//
//   w = unit * half * factor * q        unit a power of two: 1 for IQ3_S, 1/2 for IQ3_XXS, 1/8 for the others
//
// q is one of at most 16 numbers. Those of IQ3_XXS are half as large as in ggml, those of IQ1 eight times its ternary
// numbers with their offset of an eighth.
inline constexpr std::array<int8_t, 16> kIq2Numbers = {8, 25, 43, -8, -25, -43};
inline constexpr std::array<int8_t, 16> kIq3XxsNumbers = {
    2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31};
inline constexpr std::array<int8_t, 16> kIq3SNumbers = {
    1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
inline constexpr std::array<int8_t, 16> kIq1Numbers = {-9, -7, -1, 1, 7, 9};

void unpack_iq2_xxs(const uint8_t* block, int8_t* q);
void unpack_iq2_xs(const uint8_t* block, int8_t* q);
void unpack_iq2_s(const uint8_t* block, int8_t* q);
void unpack_iq3_xxs(const uint8_t* block, int8_t* q);
void unpack_iq3_s(const uint8_t* block, int8_t* q);
void unpack_iq1_s(const uint8_t* block, int8_t* q);
void unpack_iq1_m(const uint8_t* block, int8_t* q);

// half: an IEEE half.
void split_scales_iq2_xxs(const uint8_t* block, uint16_t* half, int8_t* factors);
void split_scales_iq2_xs(const uint8_t* block, uint16_t* half, int8_t* factors);
void split_scales_iq2_s(const uint8_t* block, uint16_t* half, int8_t* factors);
void split_scales_iq3_xxs(const uint8_t* block, uint16_t* half, int8_t* factors);
void split_scales_iq3_s(const uint8_t* block, uint16_t* half, int8_t* factors);
void split_scales_iq1_s(const uint8_t* block, uint16_t* half, int8_t* factors);
void split_scales_iq1_m(const uint8_t* block, uint16_t* half, int8_t* factors);

}  // namespace warprow
