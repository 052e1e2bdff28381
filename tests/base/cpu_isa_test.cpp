// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_isa.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(CpuIsa, ScopeLowersAndRestores) {
  const CpuIsa best = detected_cpu_isa();
  EXPECT_EQ(cpu_isa(), best);
  {
    const ScopedCpuIsa generic(CpuIsa::kGeneric);
    EXPECT_EQ(cpu_isa(), CpuIsa::kGeneric);
    {
      const ScopedCpuIsa top(CpuIsa::kAmx);
      EXPECT_EQ(cpu_isa(), best) << "never above the machine's";
    }
    EXPECT_EQ(cpu_isa(), CpuIsa::kGeneric);
  }
  EXPECT_EQ(cpu_isa(), best);
  EXPECT_STREQ(cpu_isa_name(CpuIsa::kAvx2), "avx2");
}

}  // namespace
}  // namespace warprow
