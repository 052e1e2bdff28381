// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_backend.h"
#include "attention/cpu_paged.h"
#include "attention/flashinfer.h"
#include "attention/native.h"
#include "attention/phased.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

DeviceFacts gpu_of(int32_t compute_capability) {
  DeviceFacts gpu;
  gpu.kind = DeviceKind::kCuda;
  gpu.compute_capability = compute_capability;
  return gpu;
}

AttentionNeed need_of(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  AttentionNeed need;
  need.kv.num_kv_heads = num_kv_heads;
  need.kv.head_dim_k = need.kv.head_dim_v = head_dim;
  need.num_heads = num_heads;
  need.max_num_rows = 256;
  need.max_num_toks = 8192;
  return need;
}

Result<std::unique_ptr<AttentionBackend>> make(const std::string& name,
                                               const DeviceFacts& device,
                                               const AttentionNeed& need) {
  return make_attention_backend(name, device, {&need, 1});
}

std::string refusal(const std::string& name, const DeviceFacts& device, const AttentionNeed& need) {
  const auto made = make(name, device, need);
  return made ? "" : made.error().message;
}

std::string auto_name(const DeviceFacts& device, const AttentionNeed& need) {
  const auto made = make("auto", device, need);
  return made ? std::string((*made)->capabilities().name) : made.error().message;
}

TEST(Backends, AreFoundByName) {
  const AttentionNeed need = need_of(4, 1, 64);
  EXPECT_TRUE(make("auto", DeviceFacts(), need));
  EXPECT_TRUE(make("cpu_paged", DeviceFacts(), need));
  EXPECT_EQ(refusal("flash", DeviceFacts(), need),
            "unknown attention backend flash (known: auto, cpu_paged, native+flashinfer, "
            "native, flashinfer, float32, plain)");
  EXPECT_EQ(refusal("native", DeviceFacts(), need),
            "layer 0: attention backend native does not support this device");
}

// Each need alone, on the backend that lacks it.
TEST(Backends, ANeedThatIsNotMetIsNamed) {
  struct Case {
    std::string name;
    std::string why;
    std::function<void(AttentionNeed&)> set;
  };
  const std::vector<Case> cases = {
      {"native", "head size 96", [](AttentionNeed& n) { n.kv.head_dim_k = n.kv.head_dim_v = 96; }},
      {"native", "head size 512", [](AttentionNeed& n) { n.kv.head_dim_v = 512; }},
      {"flashinfer", "head size 256", [](AttentionNeed& n) { n.kv.head_dim_v = 256; }},
      {"flashinfer", "output gates", [](AttentionNeed& n) { n.output_gate = true; }},
      {"native", "KV cache dtype float32", [](AttentionNeed& n) { n.kv.dtype = DType::kF32; }},
      {"native", "34 query heads for 2 KV heads", [](AttentionNeed& n) { n.num_heads = 34; }},
      {"native", "kernel block size 24", [](AttentionNeed& n) { n.kv.kernel_block_size = 24; }},
      {"native",
       "4000 rows in one step (at most 3072)",
       [](AttentionNeed& n) { n.max_num_rows = 4000; }},
      {"native+flashinfer", "sliding windows", [](AttentionNeed& n) { n.kv.window = 9; }},
      {"native+flashinfer",
       "3500 rows in one step (at most 3072)",
       [](AttentionNeed& n) { n.max_num_rows = 3500; }},
      {"native+flashinfer",
       "400000 tokens and 1000 rows in one step (at most 4096 tiles of 128 queries)",
       [](AttentionNeed& n) {
         n.max_num_toks = 400'000;
         n.max_num_rows = 1000;
       }},
      {"native+flashinfer",
       "pages that are larger than the layer's",
       [](AttentionNeed& n) { n.padded_pages = true; }},
      {"native+flashinfer", "batch-invariant", [](AttentionNeed& n) { n.batch_invariant = true; }},
      {"flashinfer", "attention sinks", [](AttentionNeed& n) { n.sinks = true; }},
      {"flashinfer", "soft caps", [](AttentionNeed& n) { n.soft_cap = true; }},
      {"flashinfer", "attention that is not causal", [](AttentionNeed& n) { n.causal = false; }},
      {"flashinfer",
       "sliding windows with batch-invariant",
       [](AttentionNeed& n) {
         n.kv.window = 9;
         n.batch_invariant = true;
       }},
  };
  for (const Case& c : cases) {
    AttentionNeed need = need_of(16, 2, 128);
    EXPECT_EQ(refusal(c.name, gpu_of(90), need), "") << c.name;
    need.layer = 5;
    c.set(need);
    EXPECT_EQ(refusal(c.name, gpu_of(90), need),
              "layer 5: attention backend " + c.name + " does not support " + c.why);
  }
}

TEST(Backends, HeadsOf256AreForHopper) {
  EXPECT_EQ(refusal("native", gpu_of(90), need_of(16, 4, 256)), "");
  EXPECT_EQ(refusal("native", gpu_of(100), need_of(16, 4, 256)),
            "layer 0: attention backend native does not support head size 256");
}

TEST(Backends, TheDecodeGridOfFlashinferHasABound) {
  AttentionNeed need = need_of(64, 32, 64);
  need.max_num_rows = 2048;
  EXPECT_EQ(unmet_need(flashinfer_capabilities(), gpu_of(90), need),
            "2048 rows of 32 KV heads in one step (at most 65535 together)");
  need.max_num_rows = 2047;
  EXPECT_EQ(unmet_need(flashinfer_capabilities(), gpu_of(90), need), "");
}

TEST(Backends, ComputeCapabilityIsARange) {
  const AttentionNeed need = need_of(16, 2, 128);
  EXPECT_EQ(refusal("native", gpu_of(75), need),
            "layer 0: attention backend native does not support compute capability 7.5 (it wants "
            "8.0 or later)");
  EXPECT_EQ(refusal("native", gpu_of(80), need), "");
  EXPECT_EQ(refusal("native", gpu_of(120), need), "");
  EXPECT_EQ(refusal("native+flashinfer", gpu_of(100), need),
            "layer 0: attention backend native+flashinfer does not support compute capability 10.0 "
            "(it wants 9.0 to 9.0)");
}

// Every layer of a group is checked.
TEST(Backends, TheLayerThatLacksSomethingIsNamed) {
  std::vector<AttentionNeed> needs(3, need_of(16, 2, 128));
  for (int32_t i = 0; i < 3; ++i) {
    needs[static_cast<size_t>(i)].layer = 10 + i;
  }
  EXPECT_TRUE(make_attention_backend("flashinfer", gpu_of(90), needs));
  needs[1].sinks = true;
  const auto made = make_attention_backend("flashinfer", gpu_of(90), needs);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message,
            "layer 11: attention backend flashinfer does not support attention sinks");
  EXPECT_EQ((*make_attention_backend("auto", gpu_of(90), needs))->capabilities().name, "native");
}

TEST(Backends, AutoTakesThePreferredOneThatMeetsAllNeeds) {
  EXPECT_EQ(auto_name(gpu_of(90), need_of(16, 2, 128)), "native+flashinfer");
  EXPECT_EQ(auto_name(gpu_of(90), need_of(18, 2, 128)), "native") << "nine query heads per KV head";
  EXPECT_EQ(auto_name(gpu_of(90), need_of(40, 2, 128)), "flashinfer") << "twenty: FA2";
  EXPECT_EQ(auto_name(gpu_of(80), need_of(16, 2, 128)), "native");
  AttentionNeed need = need_of(16, 2, 128);
  need.kv.window = 100;
  EXPECT_EQ(auto_name(gpu_of(90), need), "native");
}

// One order of sums for all rows: the native kernels have it, and FlashInfer's where these do not serve.
TEST(Backends, AutoTakesOneBackendIfBatchInvariant) {
  AttentionNeed need = need_of(16, 2, 128);
  need.batch_invariant = true;
  EXPECT_EQ(auto_name(gpu_of(90), need), "native");
  EXPECT_EQ(auto_name(gpu_of(80), need), "native");
  EXPECT_EQ(refusal("flashinfer", gpu_of(90), need), "");
  need.max_num_rows = 3073;
  EXPECT_EQ(auto_name(gpu_of(90), need), "flashinfer");
  need = need_of(40, 2, 128);
  need.batch_invariant = true;
  EXPECT_EQ(auto_name(gpu_of(90), need), "flashinfer") << "twenty query heads per KV head: FA2";
}

// If the largest step exceeds the preferred backend's limit, auto takes the next backend.
TEST(Backends, AutoGoesOnWhereALimitIsReached) {
  AttentionNeed need = need_of(16, 2, 128);
  need.max_num_rows = 3072;
  EXPECT_EQ(auto_name(gpu_of(90), need), "native+flashinfer");
  need.max_num_rows = 3073;
  EXPECT_EQ(auto_name(gpu_of(90), need), "flashinfer");
  EXPECT_EQ(auto_name(gpu_of(80), need), "flashinfer") << "the FA2 kernels";
  need.max_num_rows = 1024;
  need.max_num_toks = 128 * 3072;
  EXPECT_EQ(auto_name(gpu_of(90), need), "native+flashinfer") << "4096 tiles";
  need.max_num_toks += 128;
  EXPECT_EQ(auto_name(gpu_of(90), need), "native");
  need.max_num_rows = 3073;
  EXPECT_EQ(auto_name(gpu_of(90), need), "flashinfer");
  EXPECT_EQ((*make("auto", gpu_of(90), need))->capabilities().max_tiles, 0) << "the FA2 kernels";
}

// It takes every dense layer, and no other backend takes a float32 cache on a GPU.
TEST(Backends, AutoTakesFloat32ForAFloat32Cache) {
  for (const int32_t head_dim : {8, 64, 80, 128, 256}) {
    for (const int32_t num_heads : {2, 16, 40}) {
      AttentionNeed need = need_of(num_heads, 2, head_dim);
      need.kv.dtype = DType::kF32;
      EXPECT_EQ(auto_name(gpu_of(90), need), "float32");
      need.batch_invariant = need.padded_pages = need.sinks = need.soft_cap = true;
      need.kv.window = 100;
      need.max_num_rows = 10'000;
      EXPECT_EQ(auto_name(gpu_of(80), need), "float32");
    }
  }
  EXPECT_EQ(refusal("float32", gpu_of(90), need_of(16, 2, 128)),
            "layer 0: attention backend float32 does not support KV cache dtype bfloat16");
}

TEST(Backends, AutoSaysWhatEachLacks) {
  AttentionNeed need = need_of(16, 2, 520);
  need.layer = 3;
  EXPECT_EQ(
      refusal("auto", gpu_of(80), need),
      "no attention backend for this model (native+flashinfer: layer 3, compute capability "
      "8.0 (it wants 9.0 to 9.0); native: layer 3, head size 520; flashinfer: layer 3, compute "
      "capability 8.0 (it wants 9.0 to 9.0); flashinfer: layer 3, head size 520; float32: layer 3, "
      "head size 520; plain: layer 3, head size 520)");
}

TEST(Backends, FlashinferByNameHasKernelsForEveryGroupWindowAndGpu) {
  const auto max_group = [](int32_t capability, const AttentionNeed& need) {
    return (*make("flashinfer", gpu_of(capability), need))->capabilities().max_group;
  };
  EXPECT_EQ(max_group(90, need_of(16, 2, 128)), 8);
  EXPECT_EQ(max_group(90, need_of(18, 2, 128)), 0);
  EXPECT_EQ(max_group(80, need_of(16, 2, 128)), 0);
  AttentionNeed need = need_of(16, 2, 128);
  need.kv.window = 100;
  EXPECT_EQ(max_group(90, need), 0);
}

// A backend without a layout refuses it. Today all backends support all layouts.
TEST(Backends, LayoutsAreNeeds) {
  AttentionCapabilities can = cpu_paged_capabilities();
  can.kv_nhd = can.kv_apart = can.kv_by_block = false;
  AttentionNeed need = need_of(16, 2, 128);
  EXPECT_EQ(unmet_need(can, DeviceFacts(), need), "");
  need.kv.layout.order = KvOrder::kNHD;
  EXPECT_EQ(unmet_need(can, DeviceFacts(), need), "a KV cache in NHD order");
  need.kv.layout = {KvOrder::kHND, true, false};
  EXPECT_EQ(unmet_need(can, DeviceFacts(), need), "keys and values apart");
  need.kv.layout = {KvOrder::kHND, false, true};
  EXPECT_EQ(unmet_need(can, DeviceFacts(), need), "a KV cache by block");
  need.kv.layout = {KvOrder::kNHD, true, true};
  EXPECT_EQ(auto_name(gpu_of(90), need), "native+flashinfer");
  need.padded_pages = true;
  EXPECT_EQ(auto_name(gpu_of(90), need), "native");
  need.padded_pages = false;
  EXPECT_EQ(auto_name(DeviceFacts(), need), "cpu_paged");
  EXPECT_EQ(auto_name(gpu_of(80), need), "native");
}

}  // namespace
}  // namespace warprow
