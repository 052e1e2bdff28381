// SPDX-License-Identifier: Apache-2.0
#include "worker/kv_sizing.h"

#include "base/log.h"
#include "kv/kv_math.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace warprow {

KvCacheSpec largest_cache(const ModelPlan& plan) {
  KvCacheSpec cache{plan.kv.groups, 0};
  for (KvGroupSpec& group : cache.groups) {
    group.num_layers = plan.most_kv_layers;
  }
  return cache;
}

namespace {

// The longest row for prompts and answers of `len` tokens. What a pooling row yields counts as one token more, which no
// step computes, so that a prompt may have the whole length.
int32_t row_len(const ModelPlan& plan, int32_t len) {
  return len + (plan.pooler != nullptr ? 1 : 0);
}

// The blocks of a request of one token: with the null block, the smallest pool.
int32_t least_blocks(const ModelPlan& plan) {
  return static_cast<int32_t>(blocks_of_request(plan.kv.groups, 1, 1));
}

// The most tokens of one row in a step, drafts in flight included.
int32_t max_step_tokens(const ModelPlan& plan) {
  return plan.config.max_num_batched_tokens + draft_overhang(plan.runner.max_steps_in_flight,
                                                             plan.runner.max_drafts,
                                                             plan.runner.draft_lookahead);
}

int64_t longest_request(const ModelPlan& plan, int32_t num_blocks) {
  return max_tokens_held({plan.kv.groups, num_blocks}, max_step_tokens(plan));
}

// Requests that share prefixes hold more tokens than the cache: at most this many times as many.
constexpr int64_t kSharing = 4;
// The limit over all rows, whatever the cache holds: 128 MiB of ids.
constexpr int64_t kMostTokens = int64_t{1} << 25;

// Pages for the tokens that all rows hold together. When they run out, requests wait or are preempted, as without
// blocks. With windows a request keeps more tokens than blocks, so only full attention gives a bound.
void plan_pages(ModelPlan& plan) {
  TokenPages& pages = plan.runner.token_pages;
  if (plan.pages_are_given) {
    return;
  }
  const auto num_full = std::ranges::count(plan.kv.groups, KvKind::kFull, &KvGroupSpec::kind);
  const int64_t granted = plan.config.kv_cache_memory_bytes > 0 ? plan.config.kv_cache_memory_bytes
                                                                : plan.memory.requested_bytes;
  int64_t held = kMostTokens;
  if (num_full > 0) {
    const int64_t blocks = num_blocks_in(granted, largest_cache(plan));
    held = std::min(held, kSharing * (blocks / num_full) * plan.config.block_size);
  }
  const int32_t row_len = plan.runner.limits().max_row_len();
  const auto page_size = std::min(
      TokenPages().page_size, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(row_len))));
  pages = plan_token_pages(page_size, plan.config.max_num_seqs, row_len, held);
}

// The number of blocks for the granted bytes, and the longest request that they allow.
Result<void> size_kv_cache(ModelPlan& plan, int32_t user_len) {
  const ResolvedConfig& config = plan.config;
  plan.kv_cache.groups = plan.kv.groups;
  const KvCacheSpec largest = largest_cache(plan);
  const int64_t block_bytes = largest.block_bytes();
  const int64_t blocks = num_blocks_in(config.kv_cache_memory_bytes, largest);
  const int32_t least = 1 + least_blocks(plan);
  if (blocks < least) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("kv_cache_memory_bytes is {}, below the {} bytes of {} blocks: the "
                            "null block and one of "
                            "{} tokens a group",
                            config.kv_cache_memory_bytes,
                            block_bytes * least,
                            least,
                            config.block_size));
  }
  plan.kv_cache.num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, 1 << 30));
  const int64_t held = longest_request(plan, plan.kv_cache.num_blocks);
  if (user_len > held) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("max_model_len is {}, but a KV cache of {} bytes holds {} tokens; "
                            "lower max_model_len or "
                            "raise kv_cache_memory_bytes",
                            user_len,
                            config.kv_cache_memory_bytes,
                            held));
  }
  const int64_t longest = std::min<int64_t>(plan.spec.max_position, held);
  plan.config.max_model_len = user_len > 0 ? user_len : static_cast<int32_t>(longest);
  return {};
}

}  // namespace

// If the cache takes what everything else leaves: state grows with the longest request, so that length is fixed
// first, and reduced if the cache is small.
Result<void> size_memory(ModelPlan& plan,
                         int32_t user_len,
                         const std::function<void(ModelPlan&)>& measure) {
  plan.max_model_len_is_set = user_len > 0;
  if (!device_policy(plan.device.kind).kv_takes_rest) {
    if (auto sized = size_kv_cache(plan, user_len); !sized) {
      return sized;
    }
    plan.runner.max_model_len = row_len(plan, plan.config.max_model_len);
    plan_pages(plan);
    measure(plan);
    return {};
  }
  plan.kv_takes_rest = plan.config.kv_cache_memory_bytes == 0;
  plan.runner.max_model_len = row_len(plan, user_len > 0 ? user_len : plan.spec.max_position);
  for (;;) {
    plan_pages(plan);
    measure(plan);
    if (plan.kv_takes_rest) {
      const int64_t available = available_kv_bytes(plan.memory.budget());
      plan.kv_cache.groups = plan.kv.groups;
      plan.memory.kv_bytes = plan.kv_cache.block_bytes() * (1 + least_blocks(plan));
      if (available < plan.memory.kv_bytes) {
        return check_fit(plan);
      }
      plan.config.kv_cache_memory_bytes = available;
    }
    if (auto sized = size_kv_cache(plan, user_len); !sized) {
      return sized;
    }
    const int32_t longest = row_len(plan, plan.config.max_model_len);
    if (longest >= plan.runner.max_model_len) {
      return {};
    }
    plan.runner.max_model_len = longest;
  }
}

Result<void> check_fit(const ModelPlan& plan) {
  const KvBudget budget = plan.memory.budget();
  if (budget.requested > plan.device.free_bytes) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("gpu_memory_utilization {} of {} bytes is {}, but only {} are free",
                            plan.config.gpu_memory_utilization,
                            plan.device.total_bytes,
                            budget.requested,
                            plan.device.free_bytes));
  }
  if (plan.memory.kv_bytes > available_kv_bytes(budget)) {
    return fail(
        ErrorCode::kOutOfMemory,
        fmt::format("not enough memory: {} bytes of weights, {} of state and activations, "
                    "{} of graphs and libraries and {} of KV cache do not fit in {} ({:.0f}% "
                    "of {})",
                    budget.weights,
                    budget.step_peak + budget.pinned + budget.comm,
                    budget.graphs + budget.foreign,
                    plan.memory.kv_bytes,
                    budget.requested,
                    100.0 * static_cast<double>(budget.requested) /
                        static_cast<double>(plan.device.total_bytes),
                    plan.device.total_bytes));
  }
  return {};
}

void describe_kv_cache(ModelPlan& plan) {
  MemoryPlan& memory = plan.memory;
  memory.kv_block_bytes = plan.kv_cache.block_bytes();
  memory.kv_bytes = plan.kv_cache.total_bytes();
  const int64_t blocks = plan.kv_cache.num_blocks - 1;  // without the null block
  memory.kv_tokens =
      std::min(longest_request(plan, plan.kv_cache.num_blocks), blocks * plan.config.block_size);
  memory.max_concurrency = static_cast<double>(blocks) /
                           static_cast<double>(blocks_of_request(
                               plan.kv.groups, plan.config.max_model_len, max_step_tokens(plan)));
  memory.num_blocks = plan.kv_cache.num_blocks;
  memory.max_model_len = plan.config.max_model_len;
}

RankTerms offer(const ModelPlan& plan) {
  RankTerms mine{
      plan.kv_cache.num_blocks, plan.config.max_model_len, plan.runner.token_pages.num_pages};
  if (plan.kv_takes_rest) {
    const int64_t available = std::max<int64_t>(available_kv_bytes(plan.memory.budget()), 0);
    mine.num_blocks = static_cast<int32_t>(
        std::min<int64_t>(mine.num_blocks, num_blocks_in(available, plan.kv_cache)));
  }
  return mine;
}

Result<void> take_terms(ModelPlan& plan, const RankTerms& terms) {
  TokenPages& pages = plan.runner.token_pages;
  pages.num_pages = std::min(pages.num_pages, terms.num_token_pages);
  if (terms.num_blocks == plan.kv_cache.num_blocks &&
      terms.max_model_len >= plan.config.max_model_len) {
    return {};
  }
  const int64_t held = longest_request(plan, terms.num_blocks);
  const int64_t len = std::min<int64_t>({plan.config.max_model_len, terms.max_model_len, held});
  if (len < 1 || (plan.max_model_len_is_set && len < plan.config.max_model_len)) {
    return fail(
        ErrorCode::kOutOfMemory,
        fmt::format("driver and libraries took {} bytes of the device; what is left for the "
                    "KV cache holds {} tokens, below max_model_len {}",
                    plan.memory.foreign_measured_bytes,
                    held,
                    plan.config.max_model_len));
  }
  WR_LOG_INFO("the KV cache has {} blocks of the {} planned; driver and libraries took {} bytes",
              terms.num_blocks,
              plan.kv_cache.num_blocks,
              plan.memory.foreign_measured_bytes);
  plan.kv_cache.num_blocks = terms.num_blocks;
  plan.config.max_model_len = static_cast<int32_t>(len);
  describe_kv_cache(plan);
  return {};
}

}  // namespace warprow
