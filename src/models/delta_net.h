// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/device.h"
#include "kernels/delta/gated_delta.h"
#include "kv/kv_planner.h"
#include "layers/linear.h"
#include "models/layer_loader.h"
#include "models/layer_spec.h"

#include <cstdint>
#include <span>

namespace warprow {

// Memory that the gated delta nets of all layers share, for the model's largest step.
struct DeltaWorkspace {
  ActView in;                // [T, in_size + 2 * value heads]
  ActView ba;                // [T, 2 * value heads]      CPU, and so the next two
  float* gates = nullptr;    // [T, 2 * value heads]
  float* scratch = nullptr;  // gated_delta_scratch_floats
  ActView drafts_out;        // [max_draft_toks, value_size]: DeltaNet::take_drafts
};

// The drafts of a step that were accepted, on the device.
struct AcceptedDrafts {
  // Of the step's batch: as of AttentionBatch, and by batch_idx 1 + the accepted drafts of a row with drafts.
  View<const int32_t, 1> idx_mapping, query_start_loc, seq_lens, cu_num_logits, num_sampled;
  std::span<const BlockTableView> tables;  // by KV group
  std::span<const KvLayerView> kv_layers;  // by layer
};

// A gated delta net between the residual stream's norm and the join behind it. Batch and block tables come from the
// stream's ForwardContext.
//
// Owns: nothing; weights, workspace and states lie in memory of others.
// Thread: the runner's.
class DeltaNet {
 public:
  // Reads the layer's parameters.
  DeltaNet(const LayerLoader& layer, const KvPlan& kv);

  [[nodiscard]] const DeltaSpec& spec() const { return spec_; }
  // Whether one product alone reads the input, so that it may finish a norm.
  [[nodiscard]] bool has_one_product() const { return one_product_; }
  // That product, or the first.
  [[nodiscard]] LinearShape in_shape(DType act_dtype) const {
    return in_.shape(act_dtype, LinearEpilogue::kStore);
  }

  // From now on a row's drafts stay out of its state until take_drafts. max_toks: of the rows with drafts of a step, which
  // come first. Its memory is what this takes.
  void keep_drafts(Arena& arena, DType act_dtype, int64_t max_toks);
  // The accepted drafts of the last forward enter the states.
  void take_drafts(Stream& stream,
                   const AcceptedDrafts& drafts,
                   const DeltaWorkspace& workspace) const;

  // in [T, hidden_size], out [T, value_size].
  void forward(Stream& stream,
               const LinearInput& in,
               const ActView& out,
               const LinearWorkspace& linear,
               const DeltaWorkspace& workspace) const;

 private:
  DeltaSpec spec_;  // this rank's heads
  int32_t layer_;
  int32_t group_;
  bool one_product_;  // in_ yields b and a too: on a GPU, which has no panels that parts must fill
  Linear in_;
  Linear ba_;
  GatedDeltaArgs args_;  // constants of the layer
  // [max_toks, num_channels + 2 * value heads] or empty: inputs of the rule of a step's first tokens, as they were in front
  // of it.
  ActView drafts_;
};

// Workspace for all of these.
DeltaWorkspace make_delta_workspace(Arena& arena,
                                    const DeviceFacts& device,
                                    DType act_dtype,
                                    int64_t max_toks,
                                    int64_t max_draft_toks,
                                    std::span<const DeltaSpec> layers);

}  // namespace warprow
