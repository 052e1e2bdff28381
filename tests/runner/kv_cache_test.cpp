// SPDX-License-Identifier: Apache-2.0
#include "runner/kv_cache.h"

#include "device/cpu/cpu_device.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Two layers with two KV heads of 8 and, in the same pool, two with one head of 8. The latter need half the bytes per
// token, so blocks of 8 tokens share a page with blocks of 4. Each has two kernel blocks.
KvPlan two_shapes(const KvLayout& layout) {
  KvNeed wide;
  wide.num_heads = wide.num_kv_heads = 2;
  wide.head_dim_k = wide.head_dim_v = 8;
  wide.block_size = 4;
  wide.kernel_block_size = 2;
  KvNeed narrow = wide;
  narrow.num_heads = narrow.num_kv_heads = 1;
  const std::vector<KvNeed> needs = {wide, narrow, wide, narrow};
  return value_or_throw(plan_kv({&needs, 1}, layout));
}

std::vector<KvLayout> all_layouts() {
  std::vector<KvLayout> layouts;
  for (const KvOrder order : {KvOrder::kHND, KvOrder::kNHD}) {
    for (const bool apart : {false, true}) {
      for (const bool by_block : {false, true}) {
        layouts.push_back({order, apart, by_block});
      }
    }
  }
  return layouts;
}

std::string name_of(const KvLayout& layout) {
  return std::string(layout.order == KvOrder::kNHD ? "nhd" : "hnd") +
         (layout.apart ? " apart" : "") + (layout.by_block ? " by block" : "");
}

// A cache of 3 blocks on the CPU.
struct Rig {
  explicit Rig(const KvLayout& layout)
      : plan(two_shapes(layout)),
        spec{plan.groups, 3},
        device(cpu::make_cpu_device({})),
        cache(device->make_arena(ArenaPurpose::kKvCache,
                                 static_cast<size_t>(KvCache::planned_bytes(spec))),
              spec,
              plan) {}

  [[nodiscard]] const KvLayerView& layer(size_t l) const { return cache.layers()[l]; }
  // Byte offset from the cache's start.
  [[nodiscard]] int64_t at(const std::byte* address) const {
    return address - cache.arena().base();
  }

  KvPlan plan;
  KvCacheSpec spec;
  std::unique_ptr<cpu::CpuDevice> device;
  KvCache cache;
};

// The bytes of a layer's block, keys and values.
std::set<int64_t> bytes_of(const Rig& rig, size_t l, int64_t block) {
  const KvLayerView& view = rig.layer(l);
  const int64_t bpk = rig.plan.groups[0].kernel_blocks_per_block();
  std::set<int64_t> bytes;
  for (int64_t b = block * bpk; b < (block + 1) * bpk; ++b) {
    for (int64_t h = 0; h < view.num_kv_heads; ++h) {
      for (int64_t t = 0; t < view.block_size; ++t) {
        for (int64_t d = 0; d < view.head_dim_k * 2; ++d) {  // bf16
          const int64_t at =
              2 * (b * view.block_stride + h * view.head_stride + t * view.token_stride) + d;
          bytes.insert(rig.at(view.k) + at);
          bytes.insert(rig.at(view.v) + at);
        }
      }
    }
  }
  return bytes;
}

TEST(KvCacheLayout, TodaysIsByLayerAndTogether) {
  const Rig rig({});
  EXPECT_EQ(rig.plan.groups[1].block_size, 8);
  EXPECT_EQ(rig.plan.groups[1].kernel_block_size, 4);
  EXPECT_EQ(rig.spec.page_bytes(), 4 * 2 * 16 * 2);
  EXPECT_EQ(rig.spec.total_bytes(), 3 * 2 * 256);
  // A kernel block of the wide layers: 2 tokens x 2 heads x 8 keys, then as many values.
  EXPECT_EQ(rig.at(rig.layer(0).k), 0);
  EXPECT_EQ(rig.at(rig.layer(0).v), 64);
  EXPECT_EQ(rig.layer(0).block_stride, 64);
  EXPECT_EQ(rig.layer(0).head_stride, 16);
  EXPECT_EQ(rig.layer(0).token_stride, 8);
  // The second layer follows the 3 blocks of the first.
  EXPECT_EQ(rig.at(rig.layer(2).k), 3 * 256);
  // The narrow layers in the same memory.
  EXPECT_EQ(rig.at(rig.layer(1).k), 0);
  EXPECT_EQ(rig.at(rig.layer(1).v), 64);
  EXPECT_EQ(rig.layer(1).block_stride, 64);
  EXPECT_EQ(rig.at(rig.layer(3).k), 3 * 256);
}

TEST(KvCacheLayout, ApartValuesLieBehindALayersKeys) {
  const Rig rig({KvOrder::kNHD, true, false});
  EXPECT_EQ(rig.at(rig.layer(0).k), 0);
  EXPECT_EQ(rig.at(rig.layer(0).v), 3 * 128);
  EXPECT_EQ(rig.layer(0).block_stride, 32);
  EXPECT_EQ(rig.layer(0).head_stride, 8);
  EXPECT_EQ(rig.layer(0).token_stride, 16);
  EXPECT_EQ(rig.at(rig.layer(2).k), 3 * 256);
}

TEST(KvCacheLayout, ByBlockAllLayersOfABlockLieTogether) {
  const Rig rig({KvOrder::kHND, false, true});
  EXPECT_EQ(rig.at(rig.layer(2).k), 128) << "after the first layer's kernel block";
  EXPECT_EQ(rig.at(rig.layer(2).v), 128 + 64);
  EXPECT_EQ(rig.layer(2).block_stride, 128);
  const std::set<int64_t> first = bytes_of(rig, 0, 1);
  const std::set<int64_t> second = bytes_of(rig, 2, 1);
  EXPECT_EQ(*first.begin(), rig.spec.block_bytes());
  EXPECT_EQ(*second.rbegin(), 2 * rig.spec.block_bytes() - 1);
  const Rig halves({KvOrder::kHND, true, true});
  EXPECT_EQ(halves.at(halves.layer(2).k), 64);
  EXPECT_EQ(halves.at(halves.layer(2).v), 64 + 3 * 256);
  EXPECT_EQ(halves.layer(2).block_stride, 64);
}

// In every layout a block's owner writes to no other block, and the wide group's blocks fill the pool exactly.
TEST(KvCacheLayout, BlocksNeverOverlap) {
  for (const KvLayout& layout : all_layouts()) {
    SCOPED_TRACE(name_of(layout));
    const Rig rig(layout);
    std::vector<std::set<int64_t>> of_block(3);  // bytes of a block over all layers
    for (int64_t block = 0; block < 3; ++block) {
      for (const std::vector<size_t>& group : {std::vector<size_t>{0, 2}, {1, 3}}) {
        std::set<int64_t> bytes = bytes_of(rig, group[0], block);
        const size_t of_one = bytes.size();
        bytes.merge(bytes_of(rig, group[1], block));
        EXPECT_EQ(of_one, 256U);
        EXPECT_EQ(bytes.size(), 512U) << "layers of one group overlap";
        of_block[static_cast<size_t>(block)].merge(bytes);
      }
    }
    std::set<int64_t> all;
    for (const std::set<int64_t>& bytes : of_block) {
      EXPECT_EQ(bytes.size(), 512U) << "groups disagree about a block's bytes";
      all.insert(bytes.begin(), bytes.end());
    }
    EXPECT_EQ(all.size(), static_cast<size_t>(rig.spec.total_bytes()));
    EXPECT_EQ(*all.begin(), 0);
    EXPECT_EQ(*all.rbegin(), rig.spec.total_bytes() - 1);
  }
}

// Three KV heads and two in one pool: a third of each page of the latter is unused.
TEST(KvCacheLayout, ACheaperGroupLeavesRoom) {
  for (const KvLayout& layout : all_layouts()) {
    KvNeed wide;
    wide.num_kv_heads = 3;
    wide.head_dim_k = wide.head_dim_v = 8;
    wide.block_size = wide.kernel_block_size = 4;
    KvNeed narrow = wide;
    narrow.num_kv_heads = 2;
    const std::vector<KvNeed> needs = {wide, narrow};
    const KvPlan plan = value_or_throw(plan_kv({&needs, 1}, layout));
    const KvCacheSpec spec{plan.groups, 3};
    std::vector<std::byte> memory(static_cast<size_t>(spec.total_bytes()));
    const KvLayerView a = kv_layer_view(spec, {0, 0}, memory.data());
    const KvLayerView b = kv_layer_view(spec, {1, 0}, memory.data());
    EXPECT_EQ(a.block_stride, b.block_stride) << name_of(layout);
    EXPECT_EQ(a.k, b.k);
    EXPECT_LE(b.v, a.v) << "adjacent keys and values, or values in the same half";
    EXPECT_EQ(b.block_stride, layout.apart ? 4 * 3 * 8 : 4 * 3 * 8 * 2);
  }
}

}  // namespace
}  // namespace warprow
