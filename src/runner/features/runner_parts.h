// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/arena.h"
#include "device/device.h"
#include "kv/kv_spec.h"
#include "runner/features/feature_options.h"
#include "runner/step_limits.h"

#include <cstdint>
#include <span>

namespace warprow {

class BlockTables;
class KvCache;
class LogitsHead;
class Model;
class Operations;
class RequestRows;
class RunnerOps;
class Sampler;
class StagedTables;
class StepUpload;
struct InputBuffers;

// Device memory of a runner, by purpose. The memory plan computed the capacities.
struct RunnerArenas {
  Arena* state = nullptr;      // rows, tables, inputs
  Arena* workspace = nullptr;  // activations, logits, sampler
};

// The parts of their runner from which features are built. They outlive the features.
struct RunnerParts {
  Device* device = nullptr;
  RunnerArenas arenas;  // for a feature's own memory; in its constructor only
  StepLimits limits;
  RankGroup tensor;  // the ranks that divide the model's layers
  Model* model = nullptr;
  std::span<const KvGroupSpec> groups;
  // The KV cache. It is bound after construction and before the first step.
  const KvCache* const* kv_cache = nullptr;
  InputBuffers* inputs = nullptr;  // the model's inputs; a feature may add embeddings
  const RequestRows* rows = nullptr;
  const BlockTables* block_tables = nullptr;
  StagedTables* staged_tables = nullptr;  // for a feature's own tables; in its constructor only
  const StepUpload* upload = nullptr;     // its output_entry() is the step's entry number in rings
  LogitsHead* head = nullptr;  // null on a stage of a pipeline before the last, as the sampler
  Sampler* sampler = nullptr;
  RunnerOps* ops = nullptr;
  Operations* operations = nullptr;  // for a feature's own named operations
};

}  // namespace warprow
