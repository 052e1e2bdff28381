// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_context.h"
#include "device/arena.h"
#include "device/device.h"
#include "kv/kv_planner.h"
#include "models/layer_spec.h"
#include "runner/block_tables.h"
#include "runner/input_batch.h"
#include "runner/step_limits.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace warprow {

// The attention of each KV group that has layers of a model: its backend, and the metadata of the step that runs.
//
// Owns: the backends; their scratch lies in the workspace arena.
// Thread: the runner's.
class AttentionGroups {
 public:
  // Throws StartupError where a group's backend lacks what the group needs.
  AttentionGroups(Device& device,
                  Arena& workspace,
                  const KvPlan& kv,
                  std::span<const AttentionSpec> layers,
                  const BlockTables& tables,
                  const StepLimits& limits,
                  bool batch_invariant);

  // Call before every forward, inside the graph where the forward is recorded whole.
  void prepare(Stream& stream,
               const InputBatch& batch,
               const InputBuffers& inputs,
               const BlockTables& tables);

  [[nodiscard]] std::span<const ForwardGroup> groups() const { return forward_; }
  // The graph support of the least capable backend.
  [[nodiscard]] GraphSupport graph_support() const;
  // Names of the backends, separated by commas.
  [[nodiscard]] std::string names() const;

 private:
  std::vector<KvGroupSpec> groups_;
  std::vector<std::unique_ptr<AttentionBackend>> backends_;  // by KV group; null: no layers
  std::vector<ForwardGroup> forward_;                        // by KV group
};

}  // namespace warprow
