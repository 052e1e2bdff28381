// SPDX-License-Identifier: Apache-2.0
#include "attention/forward_context.h"

#include "base/check.h"
#include "device/cpu/cpu_device.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::unique_ptr<cpu::CpuDevice> inline_device() {
  cpu::CpuDeviceOptions options;
  options.mode = cpu::CpuStreamMode::kInline;
  options.num_threads = 1;
  return cpu::make_cpu_device(options);
}

TEST(ForwardContext, IsThereForOneForward) {
  const ScopedCheckThrows throws;
  const auto device = inline_device();
  const auto stream = device->make_stream();
  EXPECT_THROW(forward_context(*stream), CheckFailure);
  const ForwardContext context;
  {
    const ScopedForwardContext scope(*stream, context);
    EXPECT_EQ(&forward_context(*stream), &context);
    EXPECT_THROW(ScopedForwardContext(*stream, context), CheckFailure);
  }
  EXPECT_THROW(forward_context(*stream), CheckFailure);
}

TEST(ForwardContext, TwoStreamsHoldTwo) {
  const auto device = inline_device();
  const auto first = device->make_stream();
  const auto second = device->make_stream();
  const ForwardContext a;
  const ForwardContext b;
  const ScopedForwardContext scope_a(*first, a);
  const ScopedForwardContext scope_b(*second, b);
  EXPECT_EQ(&forward_context(*first), &a);
  EXPECT_EQ(&forward_context(*second), &b);
}

}  // namespace
}  // namespace warprow
