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

TEST(Backends, UnmetNeedsAreNamed) {
  const DeviceFacts cpu;
  KvGroupSpec group;
  group.num_kv_heads = 1;
  group.head_dim_k = group.head_dim_v = 64;
  EXPECT_TRUE(make_attention_backend("auto", cpu, group, 4));
  EXPECT_TRUE(make_attention_backend("cpu_paged", cpu, group, 4));
  const auto unknown = make_attention_backend("flash", cpu, group, 4);
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("flash"), std::string::npos);
  group.head_dim_k = 60;
  const auto odd = make_attention_backend("cpu_paged", cpu, group, 4);
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message.find("cpu_paged does not support head size"), std::string::npos);
}

TEST(Backends, AutoTakesThePreferredOneThatMeetsAllNeeds) {
  DeviceFacts gpu;
  gpu.kind = DeviceKind::kCuda;
  gpu.compute_capability = 90;
  KvGroupSpec group;
  group.num_kv_heads = 2;
  group.head_dim_k = group.head_dim_v = 128;
  const auto name_of = [&](int32_t num_heads) {
    return (*make_attention_backend("auto", gpu, group, num_heads))->capabilities().name;
  };
  EXPECT_EQ(name_of(16), "native+flashinfer");
  EXPECT_EQ(name_of(18), "native") << "nine query heads per KV head";
  group.window = 100;
  EXPECT_EQ(name_of(16), "native");
  group.window = 0;
  gpu.compute_capability = 80;
  EXPECT_EQ(name_of(16), "native");
}

TEST(Backends, FlashinferByNameHasKernelsForEveryGroupWindowAndGpu) {
  DeviceFacts gpu;
  gpu.kind = DeviceKind::kCuda;
  gpu.compute_capability = 90;
  KvGroupSpec group;
  group.num_kv_heads = 2;
  group.head_dim_k = group.head_dim_v = 128;
  const auto max_group = [&](int32_t num_heads) {
    return (*make_attention_backend("flashinfer", gpu, group, num_heads))->capabilities().max_group;
  };
  EXPECT_EQ(max_group(16), 8);
  EXPECT_EQ(max_group(18), 0);
  group.window = 100;
  EXPECT_EQ(max_group(16), 0);
  group.window = 0;
  gpu.compute_capability = 80;
  EXPECT_EQ(max_group(16), 0);
  group.head_dim_v = 256;
  const auto wide = make_attention_backend("flashinfer", gpu, group, 16);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().message, "attention backend flashinfer does not support head size 256");
}

}  // namespace
}  // namespace warprow
