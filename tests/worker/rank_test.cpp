// SPDX-License-Identifier: Apache-2.0
#include "worker/rank.h"

#include "device/cpu/cpu_device.h"
#include "device/shape_only.h"
#include "tests/support/source_path.h"
#include "worker/worker.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

ModelPlan tiny_plan() {
  EngineConfig config;
  config.model = test::source_path("tests/golden/tiny/llama_gqa_tied");
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.kv_cache_memory_bytes = 1 << 20;
  config.threads = 1;
  return value_or_throw(plan_model(config, {2, int64_t{1} << 30, {}, {}}));
}

std::vector<std::byte> content_of(Stream& stream, const Arena& arena) {
  std::vector<std::byte> content(arena.used());
  stream.copy_to_host(content.data(), arena.base(), content.size());
  stream.synchronize();
  return content;
}

TEST(Rank, OnShapesItTakesWhatThePlanSays) {
  const ModelPlan plan = tiny_plan();
  const auto device = make_shape_only_device(plan.device);
  const auto stream = device->make_stream();
  constexpr size_t kRoom = size_t{1} << 40;
  Rank rank = build_rank(plan, *device, *stream, {kRoom, kRoom, kRoom});
  EXPECT_EQ(rank.weights.used(), static_cast<size_t>(plan.memory.weights_bytes));
  EXPECT_EQ(rank.state.used(), static_cast<size_t>(plan.memory.state_bytes));
  EXPECT_EQ(rank.workspace.used(), static_cast<size_t>(plan.memory.workspace_bytes));
  EXPECT_EQ(device->pinned_bytes(), plan.memory.pinned_bytes);
  give_kv_cache(rank, plan, *device);
  EXPECT_EQ(rank.kv_cache->arena().used(), static_cast<size_t>(plan.memory.kv_bytes));
}

TEST(Rank, TheCacheIsZeroedWhateverItHeld) {
  const ModelPlan plan = tiny_plan();
  const auto device = cpu::make_cpu_device({.num_threads = 1});
  const auto stream = device->make_stream();
  const auto bytes = static_cast<size_t>(plan.memory.kv_bytes);
  KvCache cache(device->make_arena(ArenaPurpose::kKvCache, bytes), plan.kv_cache, plan.kv);
  stream->fill(cache.arena().base(), 0xff, bytes);
  ASSERT_EQ(content_of(*stream, cache.arena()).back(), std::byte{0xff});
  zero_kv_cache(*stream, cache);
  const std::vector<std::byte> content = content_of(*stream, cache.arena());
  EXPECT_TRUE(std::ranges::all_of(content, [](std::byte b) { return b == std::byte{0}; }));
}

// Warm-up leaves no traces. Two workers without any request have the same state, including the rows that warm-up used.
TEST(Worker, WarmUpIsRepeatable) {
  const auto sum = [] {
    Worker worker(tiny_plan(), cpu::make_cpu_device({.num_threads = 1}));
    EXPECT_EQ(worker.num_outstanding(), 0);
    return *worker.call("state_checksum", "");
  };
  EXPECT_EQ(sum(), sum());
}

TEST(Worker, AnswersTheOperationsOfItselfAndOfItsRunner) {
  Worker worker(tiny_plan(), cpu::make_cpu_device({.num_threads = 1}));
  EXPECT_EQ(worker.call("check_health", ""), "ok");
  EXPECT_EQ(worker.call("attention_backends", ""), "cpu_paged");
  EXPECT_EQ(worker.call("memory_plan", "text"), format_plan(worker.plan().memory));
  EXPECT_EQ(worker.call("nonesuch", ""), std::nullopt);
}

}  // namespace
}  // namespace warprow
