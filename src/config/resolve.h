// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"

#include <cstdint>
#include <string_view>

namespace warprow {

// What resolve() must know of the machine and, where it is known already, of the model. Plain
// numbers, because config sees neither a device nor a model.
struct HostFacts {
  int32_t usable_cores = 1;
  int64_t usable_memory_bytes = 0;
  bool has_cuda = false;
  std::string_view why_no_cuda = "this build has no CUDA support";  // when has_cuda is false
  int32_t model_max_len = 0;  // 0: not known yet; the checks that need it are left out
};

// EngineConfig with every wish decided. No zero is left, except max_model_len where the user left
// it to the model (its length and the KV cache decide when the model is there) and, on a GPU,
// kv_cache_memory_bytes (what the plan of everything else leaves decides). long_prefill_token_threshold
// is 0 where there is no limit. device is "cpu" or
// "cuda". Invariant: max_num_batched_tokens >= max_num_seqs; without chunked prefill also >=
// max_model_len as far as known.
struct ResolvedConfig : EngineConfig {
  int32_t long_prompt_len = 0;  // long_prefill_token_threshold is for prompts of more tokens alone
};

// The only place where hardware changes a setting. An error names the flags, their values and the
// limit.
Result<ResolvedConfig> resolve(const EngineConfig& wishes, const HostFacts& host);

}  // namespace warprow
