// SPDX-License-Identifier: Apache-2.0
#pragma once

// The vectors of panel_access.h for ARMv8.2 with the int8 dot product. A 16-lane vector is four
// registers.
#include <arm_neon.h>
#include <cstddef>
#include <cstdint>

namespace warprow::cpu {
namespace {

struct PanelVector {
  static constexpr const char* kName = "neon_dot";
  static constexpr int64_t kBlockRows = 512;
  struct F {
    float32x4_t v[4];
  };
  struct I {
    int32x4_t v[4];
  };
  static constexpr int kDirectRows = 4;
  static constexpr int kDirectQ4Rows = 4;
  static constexpr int kDirectTile = 4;
  static constexpr int kIntRows = 3;  // 12 integer and 12 float accumulators of 32 registers
  static constexpr int kIntPanels = 1;
  static constexpr int kFloatRows = 3;  // 24 accumulators
  static constexpr int kFloatPanels = 1;
  static constexpr bool kDotsPairs = false;
  static constexpr bool kQuantisesFour = false;
  static constexpr bool kOffsetWeights = false;

  template <typename T, typename Fn>
  static T each(const Fn& fn) {
    return T{{fn(0), fn(1), fn(2), fn(3)}};
  }

  static F zero() { return set1(0.0F); }
  static F set1(float f) {
    return each<F>([=](int) { return vdupq_n_f32(f); });
  }
  static F load(const float* p) {
    return each<F>([=](int i) { return vld1q_f32(p + 4 * i); });
  }
  static void store(float* p, F a) {
    for (int i = 0; i < 4; ++i) {
      vst1q_f32(p + 4 * i, a.v[i]);
    }
  }
  static F load_bytes_f32(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
  static F load_half(const std::byte* p) {
    const auto* half = reinterpret_cast<const uint16_t*>(p);
    return each<F>(
        [=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half + 4 * i))); });
  }
  static F load_s8(const std::byte* p) {
    const int8x16_t bytes = vld1q_s8(reinterpret_cast<const int8_t*>(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  // Powers of two from float32's exponent fields; 0 is zero.
  static F load_powers(const std::byte* p) {
    const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
    const uint16x8_t high = vmovl_u8(vget_high_u8(bytes));
    return {{vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(low)), 23)),
             vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_high_u16(low)), 23)),
             vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(high)), 23)),
             vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_high_u16(high)), 23))}};
  }
  static F low_bf16(I pair) {
    return each<F>([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(pair.v[i], 16)); });
  }
  static F high_bf16(I pair) {
    const int32x4_t mask = vdupq_n_s32(-0x10000);
    return each<F>([&](int i) { return vreinterpretq_f32_s32(vandq_s32(pair.v[i], mask)); });
  }
  static F add(F a, F b) {
    return each<F>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  static F mul(F a, F b) {
    return each<F>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  static F fma(F a, F b, F c) {
    return each<F>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  // Adds the products of bf16 pairs, the odd inputs' first.
  static F dot2(F acc, I w, int8x16_t x) {
    const int32x4_t pair = vreinterpretq_s32_s8(x);
    const I both{{pair, pair, pair, pair}};
    acc = fma(high_bf16(w), high_bf16(both), acc);
    return fma(low_bf16(w), low_bf16(both), acc);
  }

  static I zero_int() {
    return each<I>([](int) { return vdupq_n_s32(0); });
  }
  static I add_s32(I a, I b) {
    return each<I>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
  }
  static F to_float(I a) {
    return each<F>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
  }
  static I load_raw(const void* p) {
    const auto* dwords = static_cast<const int32_t*>(p);
    return each<I>([=](int i) { return vld1q_s32(dwords + 4 * i); });
  }
  static void store_raw(void* p, I a) {
    auto* dwords = static_cast<int32_t*>(p);
    for (int i = 0; i < 4; ++i) {
      vst1q_s32(dwords + 4 * i, a.v[i]);
    }
  }

  template <int kByte>
  static F byte_to_float(I a) {
    return each<F>(
        [&](int i) { return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(a.v[i], 24 - 8 * kByte), 24)); });
  }
  static int32x4_t nibble_decoder(int32_t zero_point) { return vdupq_n_s32(zero_point); }
  template <int kShift>
  static F nibble_to_float(I a, int32x4_t zero_point) {
    return each<F>([&](int i) {
      const int32x4_t nibble = vandq_s32(vshlq_s32(a.v[i], vdupq_n_s32(-kShift)), vdupq_n_s32(15));
      return vcvtq_f32_s32(vsubq_s32(nibble, zero_point));
    });
  }

  static I low_nibbles(I a) {
    return each<I>([&](int i) { return vandq_s32(a.v[i], vdupq_n_s32(0x0f0f0f0f)); });
  }
  static I high_nibbles(I a) {
    return each<I>(
        [&](int i) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a.v[i]), 4)); });
  }
  // A byte's number e2m1 in its low four bits, others zero -> 2 * number + 12, in 0 .. 24.
  static I e2m1_codes(I a) {
    constexpr uint8_t kCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const uint8x16_t table = vld1q_u8(kCodes);
    return each<I>([&](int i) {
      return vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(a.v[i])));
    });
  }
  // The numbers of a table, for look_up: of each byte's low four bits, others zero, the number at that place.
  static I load_numbers(const int8_t* numbers) {
    const int32x4_t table = vreinterpretq_s32_s8(vld1q_s8(numbers));
    return each<I>([=](int) { return table; });
  }
  static I look_up(I table, I a) {
    return each<I>([&](int i) {
      return vreinterpretq_s32_s8(
          vqtbl1q_s8(vreinterpretq_s8_s32(table.v[i]), vreinterpretq_u8_s32(a.v[i])));
    });
  }
  // a | ((plane << kLeft) & kMask), in each dword.
  template <int kLeft, uint32_t kMask>
  static I add_bits(I a, I plane) {
    const int32x4_t mask = vdupq_n_s32(static_cast<int32_t>(kMask));
    return each<I>([&](int i) {
      return vorrq_s32(a.v[i], vandq_s32(vshlq_s32(plane.v[i], vdupq_n_s32(kLeft)), mask));
    });
  }
  static I subtract_bytes(I a, int32_t zero_point) {
    const int8x16_t zero = vdupq_n_s8(static_cast<int8_t>(zero_point));
    return each<I>(
        [&](int i) { return vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(a.v[i]), zero)); });
  }
  static int8x16_t load_dword(const int8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
  }
  static I dot4(I acc, I w, int8x16_t a) {
    return each<I>([&](int i) { return vdotq_s32(acc.v[i], vreinterpretq_s8_s32(w.v[i]), a); });
  }
  static I dot4_pinned(I acc, I w, int8x16_t a) { return dot4(acc, w, a); }

  // The lanes' larger magnitudes by their bit patterns, so that a NaN is the largest.
  static F larger_magnitudes(F a, F b) {
    const int32x4_t magnitude = vdupq_n_s32(0x7fffffff);
    F r;
    for (int i = 0; i < 4; ++i) {
      r.v[i] =
          vreinterpretq_f32_s32(vmaxq_s32(vandq_s32(vreinterpretq_s32_f32(a.v[i]), magnitude),
                                          vandq_s32(vreinterpretq_s32_f32(b.v[i]), magnitude)));
    }
    return r;
  }
  // The largest lane of larger_magnitudes' result.
  static float largest_magnitude(F v) {
    int32x4_t larger = vreinterpretq_s32_f32(v.v[0]);
    for (int i = 1; i < 4; ++i) {
      larger = vmaxq_s32(larger, vreinterpretq_s32_f32(v.v[i]));
    }
    const int32_t bits = vmaxvq_s32(larger);
    float result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
  }
  // Rounds to nearest even within [-127, 127], stores 16 bytes and returns their sum.
  static int32_t round_to_s8(int8_t* q, F a) {
    const float32x4_t limit = vdupq_n_f32(127.0F);
    int16x4_t narrow[4];
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) {
      const float32x4_t limited = vminq_f32(vmaxq_f32(a.v[i], vnegq_f32(limit)), limit);
      const int32x4_t rounded = vcvtnq_s32_f32(limited);
      sum += vaddvq_s32(rounded);
      narrow[i] = vmovn_s32(rounded);
    }
    vst1_s8(q, vmovn_s16(vcombine_s16(narrow[0], narrow[1])));
    vst1_s8(q + 8, vmovn_s16(vcombine_s16(narrow[2], narrow[3])));
    return sum;
  }
};

}  // namespace
}  // namespace warprow::cpu
