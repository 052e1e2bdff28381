// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// The instruction sets that CPU kernels are compiled for. Ordered: a higher one includes the lower
// ones, but kAvx512 and higher not always kAvxVnni.
//  kAvx2: AVX2, FMA, F16C. kAvxVnni: also int8 dot products of 256 bits (AVX-VNNI). kAvx512: AVX2 and AVX-512 F, BW, VL, DQ,
//  VNNI. kAvx512Bf16: also AVX-512 BF16. kAmx: also tiles of int8 and bf16 (AMX). Each only if the operating system saves the
//  registers; for AMX the process asks it to.
enum class CpuIsa : uint8_t { kGeneric, kAvx2, kAvxVnni, kAvx512, kAvx512Bf16, kAmx };
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::kGeneric,
                                      CpuIsa::kAvx2,
                                      CpuIsa::kAvxVnni,
                                      CpuIsa::kAvx512,
                                      CpuIsa::kAvx512Bf16,
                                      CpuIsa::kAmx};

// What kernels dispatch on: the set that the variable WARPROW_CPU_ISA names, else preferred_cpu_isa(). A ScopedCpuIsa
// changes it. Cheap. Throws what chosen_cpu_isa throws; a device of the CPU calls it at start.
// Thread: any.
CpuIsa cpu_isa();

// The set that a value of WARPROW_CPU_ISA means on a machine whose best set is `best`: the one of that name
// (cpu_isa_name); null, empty and "auto": `preferred`. Throws StartupError for other names, for sets above `best`, and for
// kAvxVnni where the machine has none.
CpuIsa chosen_cpu_isa(const char* name, CpuIsa best, CpuIsa preferred, bool has_avx_vnni = true);

// The best set this machine has, also while a ScopedCpuIsa is active.
CpuIsa detected_cpu_isa();
// The fastest set for a machine whose best set is `best`. Intel's processors compute a vdpbf16ps every second cycle and two
// multiply-adds of float32 in each (docs/adr/0054-amx-on-a-cpu.md), so without AMX they do not take kAvx512Bf16.
constexpr CpuIsa preferred_cpu_isa(CpuIsa best, bool is_intel) {
  return is_intel && best == CpuIsa::kAvx512Bf16 ? CpuIsa::kAvx512 : best;
}
// Whether this machine has the set.
bool has_cpu_isa(CpuIsa isa);

const char* cpu_isa_name(CpuIsa isa);

// Changes cpu_isa() for the whole process within its scope, for tests that run every kernel variant. A set that the
// machine lacks is lowered to what it has. Must not be used while other threads run kernels.
class ScopedCpuIsa {
 public:
  explicit ScopedCpuIsa(CpuIsa isa);
  ~ScopedCpuIsa();
  ScopedCpuIsa(const ScopedCpuIsa&) = delete;
  ScopedCpuIsa& operator=(const ScopedCpuIsa&) = delete;

 private:
  CpuIsa previous_;
};

}  // namespace warprow
