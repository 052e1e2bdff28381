// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// The instruction sets that CPU kernels are compiled for. Ordered: a higher one includes the lower
// ones.
//  kAvx2: AVX2, FMA, F16C. kAvx512: also AVX-512 F, BW, VL, DQ, VNNI. kAvx512Bf16: also AVX-512
//  BF16. kAmx: also tiles of int8 and bf16 (AMX). Each only if the operating system saves the registers; for AMX the process
//  asks it to.
enum class CpuIsa : uint8_t { kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// What kernels dispatch on: the best set this machine has, unless a ScopedCpuIsa lowers it. Cheap.
// Thread: any.
CpuIsa cpu_isa();

// The best set this machine has, also while a ScopedCpuIsa is active.
CpuIsa detected_cpu_isa();

const char* cpu_isa_name(CpuIsa isa);

// Lowers cpu_isa() for the whole process within its scope, for tests that run every kernel variant. A set that the
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
