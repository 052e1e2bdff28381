// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_need.h"
#include "base/error.h"
#include "device/arena.h"
#include "device/device.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/attention/kv_view.h"
#include "kernels/rope/rope_kv_write.h"
#include "kv/kv_spec.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace warprow {

// How far a backend's forward may be recorded into a graph, weakest first. GraphPlan chooses modes by the weakest
// backend of a model.
enum class GraphSupport : uint8_t {
  kNever,
  kUniformSingleTokenDecode,  // every row exactly one token
  kUniformBatch,              // every row the same number of tokens
  kAlways,
};

inline constexpr int32_t kAnyCapability = std::numeric_limits<int32_t>::max();

// What a backend supports, known before any device work. A need that is not met is refused at start; `auto` tries
// the next backend.
struct AttentionCapabilities {
  std::string_view name;
  DeviceKind device = DeviceKind::kCpu;
  int32_t min_compute_capability = 0;  // CUDA: 80 for 8.0
  int32_t max_compute_capability = kAnyCapability;
  std::span<const int32_t> head_dims = {};         // with kernels; empty: any up to max_head_dim
  std::span<const int32_t> hopper_head_dims = {};  // more of them, on compute capability 9.0
  int32_t head_dim_multiple = 8;
  int32_t max_head_dim = 256;
  int32_t max_group = 0;  // query heads per KV head; 0: any
  bool kv_f32 = false;
  bool kv_bf16 = false;
  bool kv_f8 = false;                  // with scales (KvLayerView)
  int32_t kernel_block_multiple = 16;  // kernel block sizes are multiples of this
  // The KvLayouts that it supports besides kHND with keys and values together, by layer.
  bool kv_nhd = false;
  bool kv_apart = false;
  bool kv_by_block = false;
  bool padded_pages = false;      // unused bytes between kernel blocks
  bool separate_kv_write = true;  // the KV write is an operation of its own, before the forward
  bool ahead_of_time_schedule = false;
  bool cascade = false;
  bool sliding_window = false;
  bool sinks = false;
  bool soft_cap = false;
  bool output_gate = true;  // columns behind Q, K and V
  bool not_causal = false;  // all of them do causal attention
  bool batch_invariant = false;
  bool batch_invariant_window = false;
  // Limits of a step; 0: none. A row has at most one tile of queries more than its tokens fill.
  int32_t max_num_rows = 0;
  int32_t max_rows_times_kv_heads = 0;
  int32_t max_tiles = 0;
  int32_t (*tile_toks)(int32_t head_dim) = nullptr;  // with max_tiles
  GraphSupport graph_support = GraphSupport::kNever;
};

// One step's batch as attention sees it. All views are on the device and at fixed addresses; rows
// past num_rows are padding (row -1, seq_len 0), tokens past num_toks too (slot -1).
struct AttentionBatch {
  View<const int32_t, 1> idx_mapping;      // [max_num_seqs] batch_idx -> row, -1: padding
  View<const int32_t, 1> query_start_loc;  // [max_num_seqs + 1]
  View<const int32_t, 1> seq_lens;         // [max_num_seqs]
  int32_t num_rows = 0;                    // host; padded
  int32_t num_toks = 0;                    // host; padded
  int32_t num_decode_rows = 0;  // host; the first rows, with at most decode_len tokens each
  int32_t num_decode_toks = 0;  // host; of those rows, padded
  int32_t decode_len =
      1;  // host; the most tokens of those rows, at most AttentionLimits::decode_len
  int32_t most_prompt_keys = 0;  // host; no other row has more keys; 0: not known
  // [max_num_seqs + 1] or empty. A row with n > 1 logits has n - 1 drafts, its last tokens.
  View<const int32_t, 1> cu_num_logits = {};
};

// What the attention of one KV group needs in one step.
struct AttentionMetadata {
  AttentionBatch batch;
  BlockTableView block_table;  // in kernel blocks
  View<const int64_t, 1>
      slot_mapping;  // [max_num_batched_tokens] slot of each token, -1: write nothing
};

// Constants of one layer's attention.
struct AttentionParams {
  float scale = 1.0F;
  int32_t window = 0;            // 0: none
  float soft_cap = 0.0F;         // 0: none
  const float* sinks = nullptr;  // dev f32 [num_heads] or null
  bool causal = true;
};

// One call: queries of this step against the layer's cache, which already holds this step's keys
// and values.
struct AttentionCall {
  ConstActView q;  // [num_toks, num_heads * head_dim], row-strided
  ActView out;     // [num_toks, num_heads * head_dim_v]
  int32_t num_heads = 0;
  KvLayerView kv;
  AttentionParams params;
  // Not null: norms, rotation and KV write are not done yet but part of the call (AttentionBackend::takes_rope).
  const RopeKvWriteArgs* rope = nullptr;
};

// The largest step a backend will see.
struct AttentionLimits {
  KvLayerView kv;  // shapes only
  int32_t num_heads = 0;
  int32_t max_num_rows = 0;
  int32_t decode_len = 1;        // tokens of a decode row, at most: 1 plus drafts
  bool batch_invariant = false;  // a query's result must not depend on the rest of the batch
  int32_t max_num_toks = 0;
  int32_t max_num_blocks = 0;   // kernel blocks of one row
  int64_t num_table_cells = 0;  // BlockTableView::num_cells
};

// A family of attention kernels: what it supports, what it prepares once per step and group, and the forward.
//
// Thread: the runner's.
// Invariant: build_metadata is called before any forward of its step and group.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  [[nodiscard]] virtual const AttentionCapabilities& capabilities() const = 0;
  // Called once, before the first step: allocates the scratch that the largest step needs.
  virtual void allocate(Arena& workspace, Device& device, const AttentionLimits& limits) = 0;
  // Called per step and KV group; may enqueue device work. Takes the base metadata and returns what forward() gets.
  virtual AttentionMetadata build_metadata(Stream& stream,
                                           const KvGroupSpec& group,
                                           const AttentionMetadata& base) = 0;
  // Whether forward can do rope's work for such a call, which has no `rope` yet. A function of shapes and the step's row counts.
  [[nodiscard]] virtual bool takes_rope(const Stream& /*stream*/,
                                        const AttentionCall& /*call*/,
                                        const AttentionMetadata& /*metadata*/,
                                        const RopeKvWriteArgs& /*rope*/) const {
    return false;
  }
  virtual void forward(Stream& stream,
                       const AttentionCall& call,
                       const AttentionMetadata& metadata) = 0;
};

// Why a layer cannot be served, in words: "head size 96". Empty if it can.
std::string unmet_need(const AttentionCapabilities& can,
                       const DeviceFacts& device,
                       const AttentionNeed& need);

// The backend of a KV group, given a need for each of its layers: the named one, or with "auto" the device's
// preferred one that meets all of them. Errors: an unknown name; the first need that the backend does not meet,
// with the layer and the backend.
Result<std::unique_ptr<AttentionBackend>> make_attention_backend(
    std::string_view name, const DeviceFacts& device, std::span<const AttentionNeed> needs);

}  // namespace warprow
