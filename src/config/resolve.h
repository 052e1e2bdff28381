// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"
#include "config/speculation.h"

#include <cstdint>
#include <string_view>

namespace warprow {

// What resolve() needs of the machine and, if it is read already, of the model. Plain numbers, because config
// depends on neither devices nor models.
struct HostFacts {
  int32_t usable_cores = 1;
  int64_t usable_memory_bytes = 0;
  bool has_cuda = false;
  std::string_view why_no_cuda = "this build has no CUDA support";  // when has_cuda is false
  int32_t compute_capability = 0;                                   // of the GPU: 90 for 9.0
  int64_t gpu_memory_bytes = 0;
  int32_t model_max_len = 0;  // 0: unknown; checks that need it are skipped
};

// EngineConfig with every setting decided. No zero is left, except max_model_len if the user left it
// to the model (its length and the KV cache decide it later), on a GPU kv_cache_memory_bytes (what the
// plan of everything else leaves), long_prefill_token_threshold and target_itl_ms (no limit). device is "cpu" or "cuda".
// Invariant: max_num_batched_tokens >= max_num_seqs; without chunked prefill also >= max_model_len, if
// that is known.
struct ResolvedConfig : EngineConfig {
  int32_t long_prompt_len = 0;  // long_prefill_token_threshold applies to longer prompts only
  Speculation speculation{};
  // What one more token costs a step, in units of a step with one; 0: every row drafts as many tokens as it may.
  double draft_cost = 0;
  double draft_knee = 0;  // SchedulerConfig::draft_knee
};

// The only place where hardware changes a setting. An error names the flags, their values and the
// limit.
Result<ResolvedConfig> resolve(const EngineConfig& settings, const HostFacts& host);

}  // namespace warprow
