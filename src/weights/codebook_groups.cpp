// SPDX-License-Identifier: Apache-2.0
#include "weights/codebook_groups.h"

#include "weights/codebooks.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace warprow {
namespace {

uint32_t load_u16(const uint8_t* p) {
  uint16_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}
uint32_t load_u32(const uint8_t* p) {
  uint32_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}
void store_eight(int8_t* q, uint64_t eight) { std::memcpy(q, &eight, sizeof eight); }

// A codebook with a byte for each element, the first one lowest.
template <size_t N>
using Bytes = std::array<uint64_t, N>;
template <size_t N, size_t M>
Bytes<N> expanded(const std::array<uint16_t, N>& book, const std::array<int8_t, M>& numbers) {
  constexpr unsigned kBits = M == 8 ? 3 : 2;
  constexpr unsigned kElems = M == 8 ? 4 : 8;
  Bytes<N> bytes{};
  for (size_t code = 0; code < N; ++code) {
    for (unsigned i = 0; i < kElems; ++i) {
      const auto number = static_cast<uint8_t>(numbers[book[code] >> (kBits * i) & (M - 1)]);
      bytes[code] |= uint64_t{number} << (8 * i);
    }
  }
  return bytes;
}
// Of two bits; an entry has no 3.
constexpr std::array<int8_t, 4> kIq2Magnitudes = {kIq2Numbers[0], kIq2Numbers[1], kIq2Numbers[2]};
constexpr std::array<int8_t, 4> kIq1Eights = {-8, 0, 8};
constexpr std::array<int8_t, 8> first_eight(const std::array<int8_t, 16>& numbers) {
  std::array<int8_t, 8> magnitudes{};
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    magnitudes[i] = numbers[i];
  }
  return magnitudes;
}

// The magnitudes, of which none is 0, with a sign for each set bit.
uint64_t with_signs(uint64_t magnitudes, uint32_t signs) {
  const uint64_t bits = (signs * 0x0101010101010101U) & 0x8040201008040201U;
  const uint64_t ones = ((bits + 0x7f7f7f7f7f7f7f7fU) & 0x8080808080808080U) >> 7;
  return (magnitudes ^ (ones * 0xffU)) +
         ones;  // no carry: the complement of a positive s8 is below 255
}
// Signs of eight elements from seven bits: the number of minus signs is even.
uint32_t even_signs(uint32_t seven) {
  return seven | static_cast<uint32_t>(std::popcount(seven) & 1) << 7;
}
int8_t odd_factor(uint32_t n) { return static_cast<int8_t>(2 * n + 1); }
uint32_t nibble(const uint8_t* p, int i) { return p[i / 2] >> (i % 2 * 4) & 15U; }
void first_half(const uint8_t* block, uint16_t* half) {
  *half = static_cast<uint16_t>(load_u16(block));
}

void store_iq1(uint64_t eights, bool minus, int8_t* q) {
  store_eight(q, eights);
  const int8_t offset = minus ? -1 : 1;
  for (int i = 0; i < 8; ++i) {
    q[i] = static_cast<int8_t>(q[i] + offset);
  }
}
const Bytes<2048>& iq1_book() {
  static const Bytes<2048> kBook = expanded(codebooks::kIq1, kIq1Eights);
  return kBook;
}

}  // namespace

// f16 d | 8 times for 32 elements: 4 codes of a byte | u32 with four times seven signs and, on top, 4 bits of scale
void unpack_iq2_xxs(const uint8_t* block, int8_t* q) {
  static const Bytes<256> kBook = expanded(codebooks::kIq2Xxs, kIq2Magnitudes);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* codes = block + 2 + 8 * g;
    const uint32_t signs = load_u32(codes + 4);
    for (int i = 0; i < 4; ++i, q += 8) {
      store_eight(q, with_signs(kBook[codes[i]], even_signs(signs >> (7 * i) & 127U)));
    }
  }
}
void split_scales_iq2_xxs(const uint8_t* block, uint16_t* half, int8_t* factors) {
  first_half(block, half);
  for (int g = 0; g < 8; ++g) {
    factors[g] = odd_factor(load_u32(block + 6 + 8 * g) >> 28);
  }
}

// f16 d | 32 u16 for 8 elements each: code in 9 bits, seven signs | 8 bytes with sixteen 4-bit scales
void unpack_iq2_xs(const uint8_t* block, int8_t* q) {
  static const Bytes<512> kBook = expanded(codebooks::kIq2Xs, kIq2Magnitudes);
  for (int i = 0; i < 32; ++i, q += 8) {
    const uint32_t code = load_u16(block + 2 + 2 * i);
    store_eight(q, with_signs(kBook[code & 511U], even_signs(code >> 9)));
  }
}
void split_scales_iq2_xs(const uint8_t* block, uint16_t* half, int8_t* factors) {
  first_half(block, half);
  for (int g = 0; g < 16; ++g) {
    factors[g] = odd_factor(nibble(block + 66, g));
  }
}

// f16 d | 32 bytes of codes | 32 bytes of signs | 8 bytes with the codes' upper bit pairs | 8 bytes with sixteen 4-bit scales
void unpack_iq2_s(const uint8_t* block, int8_t* q) {
  static const Bytes<1024> kBook = expanded(codebooks::kIq2S, kIq2Magnitudes);
  const uint8_t* codes = block + 2;
  for (int i = 0; i < 32; ++i, q += 8) {
    const uint32_t upper = block[66 + i / 4] >> (i % 4 * 2) & 3U;
    store_eight(q, with_signs(kBook[codes[i] | upper << 8], block[34 + i]));
  }
}
void split_scales_iq2_s(const uint8_t* block, uint16_t* half, int8_t* factors) {
  first_half(block, half);
  for (int g = 0; g < 16; ++g) {
    factors[g] = odd_factor(nibble(block + 74, g));
  }
}

// f16 d | 64 bytes of codes of 4 elements | 8 u32, each as in IQ2_XXS
void unpack_iq3_xxs(const uint8_t* block, int8_t* q) {
  static const Bytes<256> kBook = expanded(codebooks::kIq3Xxs, first_eight(kIq3XxsNumbers));
  const uint8_t* codes = block + 2;
  for (int i = 0; i < 32; ++i, q += 8, codes += 2) {
    const uint32_t signs = load_u32(block + 66 + i / 4 * 4) >> (i % 4 * 7) & 127U;
    store_eight(q, with_signs(kBook[codes[0]] | kBook[codes[1]] << 32, even_signs(signs)));
  }
}
void split_scales_iq3_xxs(const uint8_t* block, uint16_t* half, int8_t* factors) {
  first_half(block, half);
  for (int g = 0; g < 8; ++g) {
    factors[g] = odd_factor(load_u32(block + 66 + 4 * g) >> 28);
  }
}

// f16 d | 64 bytes of codes of 4 elements | 8 bytes with the codes' ninth bits | 32 bytes of signs | 4 bytes with eight 4-bit
// scales
void unpack_iq3_s(const uint8_t* block, int8_t* q) {
  static const Bytes<512> kBook = expanded(codebooks::kIq3S, first_eight(kIq3SNumbers));
  const auto entry = [block](int i) {
    const uint32_t ninth = block[66 + i / 8] >> (i % 8) & 1U;
    return kBook[block[2 + i] | ninth << 8];
  };
  for (int i = 0; i < 32; ++i, q += 8) {
    store_eight(q, with_signs(entry(2 * i) | entry(2 * i + 1) << 32, block[74 + i]));
  }
}
void split_scales_iq3_s(const uint8_t* block, uint16_t* half, int8_t* factors) {
  first_half(block, half);
  for (int g = 0; g < 8; ++g) {
    factors[g] = odd_factor(nibble(block + 106, g));
  }
}

// f16 d | 32 bytes of codes | 8 u16 for 32 elements each: four times three upper bits of a code, 3 bits of scale, the
// offset's sign
void unpack_iq1_s(const uint8_t* block, int8_t* q) {
  for (int i = 0; i < 32; ++i, q += 8) {
    const uint32_t word = load_u16(block + 34 + i / 4 * 2);
    const uint32_t upper = word >> (i % 4 * 3) & 7U;
    store_iq1(iq1_book()[block[2 + i] | upper << 8], (word & 0x8000U) != 0, q);
  }
}
void split_scales_iq1_s(const uint8_t* block, uint16_t* half, int8_t* factors) {
  first_half(block, half);
  for (int g = 0; g < 8; ++g) {
    factors[g] = odd_factor(load_u16(block + 34 + 2 * g) >> 12 & 7U);
  }
}

// 32 bytes of codes | 16 bytes with a nibble for each code: three upper bits and the offset's sign | 4 u16, each with four
// times 3 bits of scale and, on top, 4 bits of the f16 d
void unpack_iq1_m(const uint8_t* block, int8_t* q) {
  for (int i = 0; i < 32; ++i, q += 8) {
    const uint32_t upper = nibble(block + 32, i);
    store_iq1(iq1_book()[block[i] | (upper & 7U) << 8], (upper & 8U) != 0, q);
  }
}
void split_scales_iq1_m(const uint8_t* block, uint16_t* half, int8_t* factors) {
  uint32_t d = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = load_u16(block + 48 + 2 * i);
    d |= word >> 12 << (4 * i);
    for (int g = 0; g < 4; ++g) {
      factors[4 * i + g] = odd_factor(word >> (3 * g) & 7U);
    }
  }
  *half = static_cast<uint16_t>(d);
}

}  // namespace warprow
