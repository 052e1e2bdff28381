// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler_settings.h"

namespace warprow {

SchedulerConfig scheduler_config(const EngineConfig& config,
                                 const ModelFacts& facts,
                                 int32_t max_concurrent_batches) {
  SchedulerConfig result;
  result.max_num_seqs = facts.max_num_seqs;
  result.max_num_batched_tokens = facts.max_num_batched_tokens;
  // What a pooling row yields counts as one token more.
  result.max_model_len = facts.max_model_len + (facts.pooling.pools() ? 1 : 0);
  const bool whole = facts.pooling.whole_prompts;
  result.enable_prefix_caching = config.enable_prefix_caching && !whole;
  result.enable_chunked_prefill = config.enable_chunked_prefill && !whole;
  result.policy = config.scheduling_policy == "priority" ? SchedulerConfig::Policy::kPriority
                                                         : SchedulerConfig::Policy::kFcfs;
  result.long_prefill_token_threshold = facts.long_prefill_token_threshold;
  result.long_prompt_len = facts.long_prompt_len;
  result.max_prefill_pairs = facts.max_prefill_pairs;
  result.min_deep_chunk = facts.min_deep_chunk;
  result.num_drafts = facts.max_drafts;
  result.whole_drafts = facts.whole_drafts;
  result.draft_lookahead = facts.draft_lookahead;
  result.draft_cost = facts.draft_cost;
  result.draft_knee = facts.draft_knee;
  result.draft_forward = facts.draft_forward;
  result.copies_blocks = facts.copies_blocks;
  result.num_stages = config.pipeline_parallel_size;
  result.max_concurrent_steps =
      config.async_scheduling ? max_concurrent_batches : result.num_stages;
  result.kv = facts.kv;
  result.token_pages = facts.token_pages;
  result.max_loras = facts.max_loras;
  return result;
}

double target_step_us(const EngineConfig& config, const ModelFacts& facts) {
  // Rows of a pooling model never decode. Without this, a row whose vector is in flight would count as a decoding row.
  if (facts.pooling.pools() || !config.enable_chunked_prefill) {
    return 0;
  }
  return 1e3 * facts.target_itl_ms / config.pipeline_parallel_size;
}

}  // namespace warprow
