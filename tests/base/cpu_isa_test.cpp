// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_isa.h"

#include "base/error.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(CpuIsa, ScopeLowersAndRestores) {
  const CpuIsa best = detected_cpu_isa();
  const CpuIsa before = cpu_isa();
  EXPECT_LE(before, best);
  {
    const ScopedCpuIsa generic(CpuIsa::kGeneric);
    EXPECT_EQ(cpu_isa(), CpuIsa::kGeneric);
    {
      const ScopedCpuIsa top(CpuIsa::kAmx);
      EXPECT_EQ(cpu_isa(), best) << "never above the machine's";
    }
    EXPECT_EQ(cpu_isa(), CpuIsa::kGeneric);
  }
  EXPECT_EQ(cpu_isa(), before);
  EXPECT_STREQ(cpu_isa_name(CpuIsa::kAvx2), "avx2");
}

TEST(CpuIsa, AScopeWithoutTheSetHasALowerOne) {
  const ScopedCpuIsa scope(CpuIsa::kAvxVnni);
  EXPECT_TRUE(has_cpu_isa(cpu_isa()));
  EXPECT_LE(cpu_isa(), CpuIsa::kAvxVnni);
}

TEST(CpuIsa, VariableNamesASetOfTheMachine) {
  for (const char* name : {static_cast<const char*>(nullptr), "", "auto"}) {
    EXPECT_EQ(chosen_cpu_isa(name, CpuIsa::kAvx512Bf16, CpuIsa::kAvx512), CpuIsa::kAvx512);
  }
  for (const CpuIsa isa : kCpuIsas) {
    EXPECT_EQ(chosen_cpu_isa(cpu_isa_name(isa), CpuIsa::kAmx, CpuIsa::kAmx), isa);
  }
}

TEST(CpuIsa, IntelPrefersFloat32ToItsDotProductsOfBf16) {
  for (const CpuIsa isa : kCpuIsas) {
    EXPECT_EQ(preferred_cpu_isa(isa, false), isa);
    EXPECT_EQ(preferred_cpu_isa(isa, true), isa == CpuIsa::kAvx512Bf16 ? CpuIsa::kAvx512 : isa);
  }
}

std::string refusal_of(const char* name, CpuIsa best, bool has_avx_vnni = true) {
  try {
    chosen_cpu_isa(name, best, best, has_avx_vnni);
  } catch (const StartupError& error) {
    return error.what();
  }
  return "";
}

TEST(CpuIsa, VariableIsRefusedWithItsValueAndTheMachinesBest) {
  EXPECT_EQ(refusal_of("avx512", CpuIsa::kAvx2),
            "WARPROW_CPU_ISA: this machine has no avx512; its best set is avx2");
  EXPECT_EQ(refusal_of("avx_vnni", CpuIsa::kAvx512, false),
            "WARPROW_CPU_ISA: this machine has no avx_vnni; its best set is avx512");
  EXPECT_EQ(refusal_of("avx512", CpuIsa::kAvx512, false), "");
  EXPECT_EQ(refusal_of("AVX2", CpuIsa::kAmx),
            "WARPROW_CPU_ISA: 'AVX2' is none of auto|generic|avx2|avx_vnni|avx512|avx512_bf16|amx");
}

}  // namespace
}  // namespace warprow
