// SPDX-License-Identifier: Apache-2.0
#include "executor/plan_facts.h"

#include "worker/deep_prefill.h"

#include <algorithm>

namespace warprow {

ModelFacts plan_facts(const ModelPlan& plan) {
  const DeepPrefill deep = deep_prefill(plan);
  return {plan.spec.architecture,
          plan.spec.vocab_size,
          plan.config.max_model_len,
          plan.config.max_num_seqs,
          plan.config.max_num_batched_tokens,
          plan.kv_cache,
          plan.runner.token_pages,
          plan.config.target_itl_ms,
          plan.config.long_prefill_token_threshold,
          plan.config.long_prompt_len,
          deep.max_pairs,
          deep.min_chunk,
          plan.config.enable_hidden_states,
          plan.runner.max_drafts,
          plan.config.speculation.whole_drafts(),
          plan.runner.draft_lookahead,
          plan.config.draft_cost,
          plan.config.draft_knee,
          plan.draft_forward,
          plan.pooler == nullptr ? PoolingFacts() : plan.pooler->facts,
          plan.config.enable_prompt_embeds ? plan.spec.hidden_size : 0,
          plan.runner.features.block_copies,
          std::min(std::max(plan.runner.max_logprobs, kMaxLogprobIds), plan.spec.vocab_size),
          plan.runner.features.lora.max_loras,
          plan.runner.features.lora.max_cpu_loras};
}

}  // namespace warprow
