// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

// The codebooks of GGUF's IQ types, which are part of the format. An entry has the elements of one code, from the lowest
// bits on: eight of 2 bits, or four of 3 bits (kIq3Xxs, kIq3S).
namespace warprow::codebooks {

extern const std::array<uint16_t, 256> kIq2Xxs;
extern const std::array<uint16_t, 512> kIq2Xs;
extern const std::array<uint16_t, 1024> kIq2S;
extern const std::array<uint16_t, 256> kIq3Xxs;
extern const std::array<uint16_t, 512> kIq3S;
extern const std::array<uint16_t, 2048> kIq1;  // of IQ1_S and IQ1_M

}  // namespace warprow::codebooks
