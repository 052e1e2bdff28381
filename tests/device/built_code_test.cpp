// SPDX-License-Identifier: Apache-2.0
#include "device/built_code.h"

#include "base/check.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow::cuda {
namespace {

constexpr const char* kRelease = "sm_80 sm_90a compute_80";

std::string why_not(const char* code, const char* name, int32_t capability) {
  DeviceFacts gpu;
  gpu.kind = DeviceKind::kCuda;
  gpu.name = name;
  gpu.compute_capability = capability;
  return why_no_code(code, gpu);
}

TEST(BuiltCode, AGpuWithoutCodeIsRefusedByName) {
  EXPECT_EQ(why_not(kRelease, "Tesla T4", 75),
            "GPU 'Tesla T4' has compute capability 7.5; this build has code for 8.0 and later");
  EXPECT_EQ(why_not("sm_90a", "NVIDIA A100", 80),
            "GPU 'NVIDIA A100' has compute capability 8.0; this build has code for 9.0");
  EXPECT_EQ(
      why_not("sm_80 sm_90a", "NVIDIA B200", 100),
      "GPU 'NVIDIA B200' has compute capability 10.0; this build has code for 8.0 to 8.9, 9.0");
}

TEST(BuiltCode, PtxRunsOnEveryLaterGpu) {
  for (const int32_t capability : {80, 86, 89, 90, 100, 103, 120, 121}) {
    EXPECT_EQ(why_not(kRelease, "", capability), "") << capability;
  }
  EXPECT_NE(why_not(kRelease, "", 70), "");
}

TEST(BuiltCode, BinariesRunOnLaterGpusOfTheirMajorVersion) {
  EXPECT_EQ(why_not("sm_86", "", 86), "");
  EXPECT_EQ(why_not("sm_86", "", 89), "");
  EXPECT_NE(why_not("sm_86", "", 80), "");
  EXPECT_NE(why_not("sm_86", "", 90), "");
  EXPECT_NE(why_not("sm_90a", "", 91), "");
  EXPECT_EQ(capabilities_in_words("sm_80 compute_90 sm_86"), "8.0 to 8.9, 9.0 and later");
}

TEST(BuiltCode, OnlyTestedGpusStartWithoutANote) {
  DeviceFacts gpu;
  gpu.name = "NVIDIA B200";
  gpu.compute_capability = 100;
  EXPECT_EQ(untested_note(gpu),
            "GPU 'NVIDIA B200' has compute capability 10.0: the code for it was compiled but never "
            "tested; check answers with warprow verify");
  for (const int32_t untested : {80, 86, 89, 103, 120}) {
    gpu.compute_capability = untested;
    EXPECT_NE(untested_note(gpu), "") << untested;
  }
  gpu.compute_capability = 90;
  EXPECT_EQ(untested_note(gpu), "");
}

TEST(BuiltCode, AnUnknownNameIsChecked) {
  const ScopedCheckThrows throws;
  EXPECT_THROW(capabilities_in_words("sm_x"), CheckFailure);
}

}  // namespace
}  // namespace warprow::cuda
