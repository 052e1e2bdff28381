// SPDX-License-Identifier: Apache-2.0
#include "runner/step_upload.h"

#include "device/cpu/cpu_device.h"
#include "tests/support/upload_race.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(StepUpload, AThisStepBTheNext) {
  for (const cpu::CpuStreamMode mode :
       {cpu::CpuStreamMode::kThreaded, cpu::CpuStreamMode::kDeferred}) {
    cpu::CpuDeviceOptions options;
    options.mode = mode;
    options.num_threads = 2;
    const auto device = cpu::make_cpu_device(options);
    const auto stream = device->make_stream();
    test::expect_a_this_step_b_the_next(
        *device, *stream, [&] { device->set_gate(false); }, [&] { device->set_gate(true); });
  }
}

}  // namespace
}  // namespace warprow
