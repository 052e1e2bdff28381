// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/speculation.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace warprow {

class RunnerFeature;
struct DraftModel;
struct Pooler;
struct RunnerParts;

// Builds one feature; called twice for a worker: once on shapes, for the memory plan.
using FeatureFactory = std::function<std::unique_ptr<RunnerFeature>(const RunnerParts&)>;

// How many LoRA adapters a runner has room for.
struct LoraOptions {
  int32_t max_loras = 0;  // with live rows at once; 0: no adapters
  int32_t max_lora_rank = 16;
  int32_t max_cpu_loras = 0;  // loaded, at least max_loras
};

// Which features a runner has.
struct FeatureOptions {
  bool hidden_states = false;               // requests may ask for them
  bool prompt_embeds = false;               // prompts may come as embeddings
  bool block_copies = false;                // rows may begin with copies of blocks; on a CPU
  Speculation speculation{};                // kNone: no drafts but those of `extra`
  const DraftModel* draft_model = nullptr;  // with that method; outlives the construction
  LoraOptions lora{};
  const Pooler* pooler =
      nullptr;                // of a pooling model; outlives the runner. Null: no row is pooled
  bool debug_checks = false;  // features that verify each step (tests)
  std::vector<FeatureFactory> extra;  // after all others, before the checks
};

}  // namespace warprow
