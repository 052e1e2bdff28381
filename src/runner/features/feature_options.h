// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/speculation.h"

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

// Which features a runner has.
struct FeatureOptions {
  bool hidden_states = false;  // requests may ask for them
  bool prompt_embeds = false;  // prompts may come as embeddings
  bool block_copies = false;   // rows may begin with copies of blocks; on a CPU
  Speculation speculation{};   // kNone: no drafts but those of `extra`
  const DraftModel* draft_model = nullptr;  // with that method; outlives the construction
  const Pooler* pooler =
      nullptr;                // of a pooling model; outlives the runner. Null: no row is pooled
  bool debug_checks = false;  // features that verify each step (tests)
  std::vector<FeatureFactory> extra;  // after all others, before the checks
};

}  // namespace warprow
