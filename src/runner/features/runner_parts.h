// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// Device memory of a runner, by purpose. Capacities are what the memory plan computed.
struct RunnerArenas {
  Arena* state = nullptr;      // rows, tables, inputs
  Arena* workspace = nullptr;  // activations, logits, sampler
};

// What features are built from: the parts of their runner, which outlive them.
struct RunnerParts {
  Device* device = nullptr;
  RunnerArenas arenas;  // for memory of a feature's own; in its constructor only
  StepLimits limits;
  Model* model = nullptr;
  std::span<const KvGroupSpec> groups;
  // The cache, once it is bound, which is after construction and before the first step.
  const KvCache* const* kv_cache = nullptr;
  InputBuffers* inputs = nullptr;  // what the model is fed; a feature may add embeddings
  const RequestRows* rows = nullptr;
  const BlockTables* block_tables = nullptr;
  StagedTables* staged_tables = nullptr;  // for tables of a feature's own; in its constructor only
  const StepUpload* upload = nullptr;     // its output_entry() numbers the step's entry of rings
  LogitsHead* head = nullptr;
  Sampler* sampler = nullptr;
  RunnerOps* ops = nullptr;
  Operations* operations = nullptr;  // for named operations of a feature's own
};

}  // namespace warprow
