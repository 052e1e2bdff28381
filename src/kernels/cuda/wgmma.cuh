// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Hopper's wgmma (sm_90a), bf16 in, float32 sums.
namespace warprow::cuda {

// Moves registers between warpgroups; all warps of a warpgroup call it.
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads and writes of registers that a wgmma in flight uses.
template <int n>
__device__ __forceinline__ void wgmma_pin(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

// Descriptor of an operand in shared memory with rows of 128 bytes and 128-byte swizzle. `stride`: bytes
// between groups of eight rows. `leading`: bytes between halves of an operand wider than a row.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t shared,
                                                  uint32_t stride,
                                                  uint32_t leading) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16 | ((shared & 0x3ffff) >> 4);
}

// A wgmma_operand so many bytes further: its address is in units of 16 bytes, in the lower bits. This takes one addition if
// the compiler knows that all lanes have the same operand.
__device__ __forceinline__ uint64_t further_operand(uint64_t operand, int bytes) {
  const auto lower = static_cast<uint32_t>(operand) + static_cast<uint32_t>(bytes / 16);
  return (operand & 0xffffffff00000000ULL) | lower;
}

// Register lists of accumulators and of operand a, for wgmma in inline assembly.
#define WR_A_REGISTERS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define WR_ACC4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define WR_ACC16(d, i) WR_ACC4(d, i), WR_ACC4(d, (i) + 4), WR_ACC4(d, (i) + 8), WR_ACC4(d, (i) + 12)
// The first so many.
#define WR_ACCS4(d) WR_ACC4(d, 0)
#define WR_ACCS8(d) WR_ACCS4(d), WR_ACC4(d, 4)
#define WR_ACCS12(d) WR_ACCS8(d), WR_ACC4(d, 8)
#define WR_ACCS16(d) WR_ACC16(d, 0)
#define WR_ACCS20(d) WR_ACCS16(d), WR_ACC4(d, 16)
#define WR_ACCS24(d) WR_ACCS20(d), WR_ACC4(d, 20)
#define WR_ACCS28(d) WR_ACCS24(d), WR_ACC4(d, 24)
#define WR_ACCS32(d) WR_ACCS28(d), WR_ACC4(d, 28)
#define WR_ACCS36(d) WR_ACCS32(d), WR_ACC4(d, 32)
#define WR_ACCS40(d) WR_ACCS36(d), WR_ACC4(d, 36)
#define WR_ACCS44(d) WR_ACCS40(d), WR_ACC4(d, 40)
#define WR_ACCS48(d) WR_ACCS44(d), WR_ACC4(d, 44)
#define WR_ACCS64(d) WR_ACCS48(d), WR_ACC16(d, 48)
#define WR_ACCS96(d) WR_ACCS64(d), WR_ACC16(d, 64), WR_ACC16(d, 80)
#define WR_ACCS128(d) \
  WR_ACCS64(d), WR_ACC16(d, 64), WR_ACC16(d, 80), WR_ACC16(d, 96), WR_ACC16(d, 112)
#define WR_ACC4_NAMES "%0,%1,%2,%3"
#define WR_ACC8_NAMES "%0,%1,%2,%3,%4,%5,%6,%7"
#define WR_ACC12_NAMES WR_ACC8_NAMES ",%8,%9,%10,%11"
#define WR_ACC16_NAMES "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WR_ACC20_NAMES WR_ACC16_NAMES ",%16,%17,%18,%19"
#define WR_ACC24_NAMES WR_ACC20_NAMES ",%20,%21,%22,%23"
#define WR_ACC28_NAMES WR_ACC24_NAMES ",%24,%25,%26,%27"
#define WR_ACC32_NAMES WR_ACC28_NAMES ",%28,%29,%30,%31"
#define WR_ACC36_NAMES WR_ACC32_NAMES ",%32,%33,%34,%35"
#define WR_ACC40_NAMES WR_ACC36_NAMES ",%36,%37,%38,%39"
#define WR_ACC44_NAMES WR_ACC40_NAMES ",%40,%41,%42,%43"
#define WR_ACC48_NAMES WR_ACC44_NAMES ",%44,%45,%46,%47"
#define WR_ACC64_NAMES                                                                    \
  WR_ACC32_NAMES                                                                          \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
  "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WR_ACC96_NAMES                                                                    \
  WR_ACC64_NAMES                                                                          \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84," \
  "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WR_ACC128_NAMES                                                                          \
  WR_ACC96_NAMES                                                                                 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114," \
  "%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// d [64 x cols] += a [64 x 16] * b [cols x 16]^T, both from shared memory.
//
// n: accumulators, half of cols; a, b: names of the operands behind them.
#define WR_WGMMA(n, cols, a, b)                                                                   \
  __device__ __forceinline__ void wgmma(float(&d)[n], uint64_t of_a, uint64_t of_b) {             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" cols "k16.f32.bf16.bf16 {" WR_ACC##n##_NAMES \
                 "}, " a ", " b ", 1, 1, 1, 0, 0;\n"                                              \
                 : WR_ACCS##n(d)                                                                  \
                 : "l"(of_a), "l"(of_b));                                                         \
  }
WR_WGMMA(4, "8", "%4", "%5")
WR_WGMMA(16, "32", "%16", "%17")
WR_WGMMA(32, "64", "%32", "%33")
WR_WGMMA(64, "128", "%64", "%65")
WR_WGMMA(128, "256", "%128", "%129")
#undef WR_WGMMA

// The same; without `add`, d is overwritten.
//
// form: the instruction's shape and types; flags: of its operands, behind `add`.
#define WR_WGMMA_ADD(name, n, form, a, b, c, flags)                                            \
  __device__ __forceinline__ void name(float(&d)[n], uint64_t of_a, uint64_t of_b, bool add) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " c                                     \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned." form " {" WR_ACC##n##_NAMES                   \
                 "}, " a ", " b ", add, " flags ";\n}\n"                                       \
                 : WR_ACCS##n(d)                                                               \
                 : "l"(of_a), "l"(of_b), "r"(add ? 1 : 0));                                    \
  }
WR_WGMMA_ADD(wgmma, 32, "m64n64k16.f32.bf16.bf16", "%32", "%33", "%34", "1, 1, 0, 0")
WR_WGMMA_ADD(wgmma, 48, "m64n96k16.f32.bf16.bf16", "%48", "%49", "%50", "1, 1, 0, 0")
WR_WGMMA_ADD(wgmma, 64, "m64n128k16.f32.bf16.bf16", "%64", "%65", "%66", "1, 1, 0, 0")
WR_WGMMA_ADD(wgmma, 96, "m64n192k16.f32.bf16.bf16", "%96", "%97", "%98", "1, 1, 0, 0")
WR_WGMMA_ADD(wgmma, 128, "m64n256k16.f32.bf16.bf16", "%128", "%129", "%130", "1, 1, 0, 0")

// d [64 x cols] += a [64 x 16] * b [cols x 16]^T; a from registers. kTransposedB: b lies as [16 x cols].
//
// n: accumulators, half of cols; a, b, t: names of the operands behind them.
#define WR_WGMMA_A(n, cols, a, b, t)                                                              \
  template <bool kTransposedB = false>                                                            \
  __device__ __forceinline__ void wgmma(float(&d)[n], const uint32_t* of_a, uint64_t of_b) {      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" cols "k16.f32.bf16.bf16 {" WR_ACC##n##_NAMES \
                 "}, {" a "}, " b ", 1, 1, 1, " t ";\n"                                           \
                 : WR_ACCS##n(d)                                                                  \
                 : WR_A_REGISTERS(of_a), "l"(of_b), "n"(kTransposedB ? 1 : 0));                   \
  }
WR_WGMMA_A(4, "8", "%4,%5,%6,%7", "%8", "%9")
WR_WGMMA_A(8, "16", "%8,%9,%10,%11", "%12", "%13")
WR_WGMMA_A(12, "24", "%12,%13,%14,%15", "%16", "%17")
WR_WGMMA_A(16, "32", "%16,%17,%18,%19", "%20", "%21")
WR_WGMMA_A(20, "40", "%20,%21,%22,%23", "%24", "%25")
WR_WGMMA_A(24, "48", "%24,%25,%26,%27", "%28", "%29")
WR_WGMMA_A(28, "56", "%28,%29,%30,%31", "%32", "%33")
WR_WGMMA_A(32, "64", "%32,%33,%34,%35", "%36", "%37")
WR_WGMMA_A(36, "72", "%36,%37,%38,%39", "%40", "%41")
WR_WGMMA_A(40, "80", "%40,%41,%42,%43", "%44", "%45")
WR_WGMMA_A(44, "88", "%44,%45,%46,%47", "%48", "%49")
WR_WGMMA_A(48, "96", "%48,%49,%50,%51", "%52", "%53")
WR_WGMMA_A(64, "128", "%64,%65,%66,%67", "%68", "%69")
WR_WGMMA_A(128, "256", "%128,%129,%130,%131", "%132", "%133")
#undef WR_WGMMA_A

// The same; without `add`, d is overwritten.
template <bool kTransposedB = false>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t* a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %38, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WR_ACC32_NAMES
      "}, {%32,%33,%34,%35}, %36, add, 1, 1, %37;\n}\n"
      : WR_ACCS32(d)
      : WR_A_REGISTERS(a), "l"(b), "n"(kTransposedB ? 1 : 0), "r"(add ? 1 : 0));
}
template <bool kTransposedB = false>
__device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t* a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %70, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WR_ACC64_NAMES
      "}, {%64,%65,%66,%67}, %68, add, 1, 1, %69;\n}\n"
      : WR_ACCS64(d)
      : WR_A_REGISTERS(a), "l"(b), "n"(kTransposedB ? 1 : 0), "r"(add ? 1 : 0));
}

}  // namespace warprow::cuda
