// SPDX-License-Identifier: Apache-2.0
// The linear layer's bf16 kernels for AVX-512 with vdpbf16ps, its dot product of bf16 pairs.
#include "kernels/linear/panel_bf16.h"

#include <immintrin.h>

namespace warprow::cpu {
namespace {

struct Avx512Bf16 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kDirectRows = 8;
  static constexpr int kDirectTile = 8;
  static constexpr int kFloatRows = 6;  // 24 accumulators of 32 registers
  static constexpr int kFloatPanels = 2;

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static I load_raw(const void* p) { return _mm512_loadu_si512(p); }
  static I load_dword(const int8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
  }
  // Inline assembly with the accumulator in place: gcc 12 moves and spills accumulators around the intrinsic.
  static F dot2(F acc, I w, I x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
  }
};

}  // namespace

void bf16_panels_avx512bf16(const PanelJob& job, const Bf16Rows& rows) {
  Bf16Panels<Avx512Bf16>::run(job, rows);
}

}  // namespace warprow::cpu
