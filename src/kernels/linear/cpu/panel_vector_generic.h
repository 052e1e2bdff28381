// SPDX-License-Identifier: Apache-2.0
#pragma once

// The vectors of panel_access.h in portable C++: correct on every CPU, and slow.
#include "base/dtype.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace warprow::cpu {
namespace {

// Loops over 16 lanes, which the compiler can vectorise for the target.
struct PanelVector {
  static constexpr const char* kName = "generic";
  static constexpr int64_t kBlockRows = 512;
  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  static constexpr int kDirectRows = 2;
  static constexpr int kDirectQ4Rows = 2;
  static constexpr int kDirectTile = 2;
  static constexpr int kIntRows = 2;
  static constexpr int kIntPanels = 1;
  static constexpr int kFloatRows = 2;
  static constexpr int kFloatPanels = 1;
  static constexpr bool kDotsPairs = false;
  static constexpr bool kQuantisesFour = false;
  static constexpr bool kOffsetWeights = false;

  template <typename T, typename Fn>
  static T each(const Fn& fn) {
    T r;
    for (int i = 0; i < 16; ++i) {
      r.v[i] = fn(i);
    }
    return r;
  }

  static F zero() { return set1(0.0F); }
  static F set1(float f) {
    return each<F>([&](int) { return f; });
  }
  static F load(const float* p) {
    return each<F>([&](int i) { return p[i]; });
  }
  static void store(float* p, F a) { __builtin_memcpy(p, a.v, sizeof a.v); }
  static F load_bytes_f32(const std::byte* p) {
    F r;
    __builtin_memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static F load_half(const std::byte* p) {
    uint16_t h[16];
    __builtin_memcpy(h, p, sizeof h);
    return each<F>([&](int i) { return f16_to_f32(h[i]); });
  }
  static F load_s8(const std::byte* p) {
    int8_t s[16];
    __builtin_memcpy(s, p, sizeof s);
    return each<F>([&](int i) { return static_cast<float>(s[i]); });
  }
  // Powers of two from float32's exponent fields; 0 is zero.
  static F load_powers(const std::byte* p) {
    return each<F>([&](int i) { return std::bit_cast<float>(static_cast<uint32_t>(p[i]) << 23); });
  }
  static F low_bf16(I pair) {
    return each<F>(
        [&](int i) { return std::bit_cast<float>(static_cast<uint32_t>(pair.v[i]) << 16); });
  }
  static F high_bf16(I pair) {
    return each<F>([&](int i) {
      return std::bit_cast<float>(static_cast<uint32_t>(pair.v[i]) & 0xffff0000U);
    });
  }
  static F add(F a, F b) {
    return each<F>([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F mul(F a, F b) {
    return each<F>([&](int i) { return a.v[i] * b.v[i]; });
  }
  // Two roundings instead of one: std::fma would be a library call here.
  static F fma(F a, F b, F c) {
    return each<F>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }

  // Adds the products of bf16 pairs, the odd inputs' first.
  static F dot2(F acc, I w, int32_t x) {
    const I both = each<I>([x](int) { return x; });
    acc = fma(high_bf16(w), high_bf16(both), acc);
    return fma(low_bf16(w), low_bf16(both), acc);
  }

  static I zero_int() {
    return each<I>([](int) { return 0; });
  }
  static I add_s32(I a, I b) {
    return each<I>([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F to_float(I a) {
    return each<F>([&](int i) { return static_cast<float>(a.v[i]); });
  }
  static I load_raw(const void* p) {
    I r;
    __builtin_memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static void store_raw(void* p, I a) { __builtin_memcpy(p, a.v, sizeof a.v); }

  static int32_t byte_of(int32_t dword, int byte) {
    return static_cast<int8_t>(static_cast<uint32_t>(dword) >> (8 * byte));
  }
  template <int kByte>
  static F byte_to_float(I a) {
    return each<F>([&](int i) { return static_cast<float>(byte_of(a.v[i], kByte)); });
  }
  static int32_t nibble_decoder(int32_t zero_point) { return zero_point; }
  template <int kShift>
  static F nibble_to_float(I a, int32_t zero_point) {
    return each<F>([&](int i) {
      const auto nibble = static_cast<int32_t>((static_cast<uint32_t>(a.v[i]) >> kShift) & 15U);
      return static_cast<float>(nibble - zero_point);
    });
  }

  static I low_nibbles(I a) {
    return each<I>([&](int i) { return a.v[i] & 0x0f0f0f0f; });
  }
  static I high_nibbles(I a) {
    return each<I>([&](int i) { return (a.v[i] >> 4) & 0x0f0f0f0f; });
  }
  // A byte's number e2m1 in its low four bits, others zero -> 2 * number + 12, in 0 .. 24.
  static I e2m1_codes(I a) {
    constexpr uint8_t kCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return each<I>([&](int i) {
      const auto dword = static_cast<uint32_t>(a.v[i]);
      uint32_t codes = 0;
      for (int shift = 0; shift < 32; shift += 8) {
        codes |= static_cast<uint32_t>(kCodes[dword >> shift & 15U]) << shift;
      }
      return static_cast<int32_t>(codes);
    });
  }
  // The numbers of a table, for look_up: of each byte's low four bits, others zero, the number at that place.
  static I load_numbers(const int8_t* numbers) {
    I table{};
    __builtin_memcpy(table.v, numbers, 16);
    return table;
  }
  static I look_up(const I& table, const I& a) {
    uint8_t numbers[16];
    __builtin_memcpy(numbers, table.v, sizeof numbers);
    return each<I>([&](int i) {
      const auto dword = static_cast<uint32_t>(a.v[i]);
      uint32_t found = 0;
      for (int shift = 0; shift < 32; shift += 8) {
        found |= static_cast<uint32_t>(numbers[dword >> shift & 15U]) << shift;
      }
      return static_cast<int32_t>(found);
    });
  }
  // a | ((plane << kLeft) & kMask), in each dword.
  template <int kLeft, uint32_t kMask>
  static I add_bits(I a, I plane) {
    return each<I>([&](int i) {
      const auto bits = static_cast<uint32_t>(plane.v[i]);
      const uint32_t moved = kLeft >= 0 ? bits << (kLeft & 31) : bits >> (-kLeft & 31);
      return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) | (moved & kMask));
    });
  }
  // Subtracts zp from each byte, 0..63. Bit 7 is set first, so that no borrow crosses bytes.
  static I subtract_bytes(I a, int32_t zero_point) {
    const uint32_t zp = 0x01010101U * static_cast<uint32_t>(zero_point);
    return each<I>([&](int i) {
      return static_cast<int32_t>(((static_cast<uint32_t>(a.v[i]) | 0x80808080U) - zp) ^
                                  0x80808080U);
    });
  }
  static int32_t load_dword(const int8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static I dot4(I acc, I w, int32_t a) {
    const int32_t a0 = byte_of(a, 0);
    const int32_t a1 = byte_of(a, 1);
    const int32_t a2 = byte_of(a, 2);
    const int32_t a3 = byte_of(a, 3);
    return each<I>([&](int i) {
      return acc.v[i] + byte_of(w.v[i], 0) * a0 + byte_of(w.v[i], 1) * a1 +
             byte_of(w.v[i], 2) * a2 + byte_of(w.v[i], 3) * a3;
    });
  }
  static I dot4_pinned(I acc, I w, int32_t a) { return dot4(acc, w, a); }

  // The lanes' larger magnitudes by their bit patterns, so that a NaN is the largest.
  static F larger_magnitudes(F a, F b) {
    F r;
    for (int i = 0; i < 16; ++i) {
      const uint32_t first = std::bit_cast<uint32_t>(a.v[i]) & 0x7fffffffU;
      const uint32_t second = std::bit_cast<uint32_t>(b.v[i]) & 0x7fffffffU;
      r.v[i] = std::bit_cast<float>(first > second ? first : second);
    }
    return r;
  }
  // The largest lane of larger_magnitudes' result.
  static float largest_magnitude(F v) {
    uint32_t largest = 0;
    for (int i = 0; i < 16; ++i) {
      const auto bits = std::bit_cast<uint32_t>(v.v[i]);
      largest = bits > largest ? bits : largest;
    }
    return std::bit_cast<float>(largest);
  }
  static int32_t round_to_s8(int8_t* q, F a) {
    constexpr float kRound =
        12582912.0F;  // 1.5 * 2^23: adding it leaves no fraction bits, rounding to nearest even
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
      const float above = a.v[i] > -127.0F ? a.v[i] : -127.0F;  // also for NaN
      const float limited = above < 127.0F ? above : 127.0F;
      const auto v = static_cast<int32_t>((limited + kRound) - kRound);
      q[i] = static_cast<int8_t>(v);
      sum += v;
    }
    return sum;
  }
};

}  // namespace
}  // namespace warprow::cpu
