// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "comm/rank_place.h"

#include <cstdint>
#include <string>

namespace warprow {

// What the KV cache may take of a device's memory, in bytes (negative: it does not fit):
//
//   requested - weights - foreign growth - peak of one step - graphs - pinned - between ranks
//
// requested: the share of the device's memory that the user grants (--gpu-memory-utilization x total); foreign:
// what contexts and libraries took since start; pinned: only where the device's memory is the host's; between ranks:
// the shared memory of CPU ranks, or the region of a GPU that the others write into.
struct KvBudget {
  int64_t requested = 0;
  int64_t weights = 0;
  int64_t foreign = 0;
  int64_t step_peak = 0;
  int64_t graphs = 0;
  int64_t pinned = 0;
  int64_t comm = 0;
};
constexpr int64_t available_kv_bytes(const KvBudget& budget) {
  return budget.requested - budget.weights - budget.foreign - budget.step_peak - budget.graphs -
         budget.pinned - budget.comm;
}

// Where every byte of a rank goes, computed before any of it is allocated. Figures are
//
//   planned    weights, state, workspace and pinned memory are counted by building model and runner
//              on a shape-only device, so they hold to the byte; the KV cache's follow from the rest,
//              and graphs may take what is reserved for them. On a CPU the KV cache takes its pages
//              when used, on CUDA at start
//   estimated  foreign memory before the rank is built, and afterwards that of kernels which load
//              with the first requests
//   measured   foreign memory once the rank is built, before the KV cache is
struct MemoryPlan {
  std::string model;
  std::string architecture;
  std::string dtype;
  std::string device;
  int64_t checkpoint_bytes = 0;         // tensors as stored in the files
  int64_t total_bytes = 0;              // memory that this process may use
  int64_t requested_bytes = 0;          // the engine's share of it
  int64_t weights_bytes = 0;            // packed for the kernels
  int64_t state_bytes = 0;              // rows, block tables, inputs
  int64_t workspace_bytes = 0;          // activations, logits, sampler
  int64_t pinned_bytes = 0;             // host memory that the device reads and writes in place
  bool pinned_is_device = false;        // this is the device's own memory: on a CPU
  int64_t comm_bytes = 0;               // several ranks: its part of what they exchange through
  int64_t graph_bytes = 0;              // GPU: captured graphs
  int64_t foreign_estimated_bytes = 0;  // GPU: what the driver and its libraries will still take
  int64_t foreign_measured_bytes = 0;   // GPU: what they had taken before the KV cache was made
  int64_t kv_bytes = 0;                 // num_blocks x block_bytes
  int64_t measured_bytes = 0;           // GPU: what start-up took by the driver's figures; 0 before
  std::string kv_dtype;                 // of keys and values
  std::string kv_scales;                // of an 8-bit cache: where they come from; else empty
  int32_t kv_layers_unscaled = 0;       // layers of an 8-bit cache without scales in the checkpoint
  int64_t kv_block_bytes = 0;
  int64_t kv_tokens = 0;       // of one request that fills the cache
  double max_concurrency = 0;  // requests of the maximum length that fit at once
  int32_t num_blocks = 0;      // the null block included
  int32_t block_size = 0;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t threads = 0;
  RankPlace place;

  [[nodiscard]] int64_t foreign_bytes() const {
    return foreign_estimated_bytes + foreign_measured_bytes;
  }
  // What is planned to lie in the device's memory.
  [[nodiscard]] int64_t planned_bytes() const {
    return weights_bytes + state_bytes + workspace_bytes + comm_bytes + graph_bytes +
           foreign_bytes() + kv_bytes + (pinned_is_device ? pinned_bytes : 0);
  }
  [[nodiscard]] KvBudget budget() const;

  // Replaces the estimate by what was measured, as far as it goes. At least kLateForeignBytes of the estimate stay,
  // for kernels that load later.
  void note_foreign(int64_t measured);
};

// The plan as lines of text, and as one JSON object.
std::string format_plan(const MemoryPlan& plan);
std::string plan_json(const MemoryPlan& plan);

}  // namespace warprow
