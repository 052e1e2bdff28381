// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/engine_config.h"
#include "tests/support/source_path.h"

namespace warprow::test {

// A model of two small layers on one CPU thread.
inline EngineConfig tiny_config() {
  EngineConfig config;
  config.model = source_path("tests/golden/tiny/llama_gqa_tied");
  config.device = "cpu";
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.kv_cache_memory_bytes = 1 << 20;
  config.threads = 1;
  return config;
}

}  // namespace warprow::test
