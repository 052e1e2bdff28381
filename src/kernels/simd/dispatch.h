// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/cpu_isa.h"

// Hot loops are in `<op>_loops.inl`, which is compiled once for each instruction set: CMake writes a stub for each that
// sets WR_ISA to the set's suffix and includes the loops (cmake/stubs.cmake). WR_ISA_DECLARE(void, f, (int x)) declares
// f_generic, f_avx2 and f_avx512. WR_ISA_PICK(f) is the one for cpu_isa(). WR_ISA_NAME(f) is the name in the loops.
#define WR_ISA_DECLARE(Result, name, params) \
  Result name##_generic params;              \
  Result name##_avx2 params;                 \
  Result name##_avx512 params

#if defined(__x86_64__)
#define WR_ISA_PICK(name)                                             \
  (::warprow::cpu_isa() >= ::warprow::CpuIsa::kAvx512 ? name##_avx512 \
   : ::warprow::cpu_isa() >= ::warprow::CpuIsa::kAvx2 ? name##_avx2   \
                                                      : name##_generic)
#else
#define WR_ISA_PICK(name) (name##_generic)
#endif

#define WR_ISA_PASTE_(name, isa) name##_##isa
#define WR_ISA_PASTE(name, isa) WR_ISA_PASTE_(name, isa)
#define WR_ISA_NAME(name) WR_ISA_PASTE(name, WR_ISA)

// Put before a loop of fixed length over an array of vectors: unrolls it, so that the array stays in
// registers.
#if defined(__clang__)
#define WR_UNROLL _Pragma("unroll")
#else
#define WR_UNROLL _Pragma("GCC unroll 16")
#endif
