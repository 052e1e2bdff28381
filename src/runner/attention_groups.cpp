// SPDX-License-Identifier: Apache-2.0
#include "runner/attention_groups.h"

#include "base/error.h"
#include "models/layer_needs.h"
#include "runner/kv_cache.h"

#include <algorithm>

namespace warprow {

AttentionGroups::AttentionGroups(Device& device,
                                 Arena& workspace,
                                 const KvPlan& kv,
                                 std::span<const AttentionSpec> layers,
                                 const BlockTables& tables,
                                 const StepLimits& limits,
                                 bool batch_invariant)
    : groups_(kv.groups), forward_(kv.groups.size()) {
  AttentionNeed need;
  need.batch_invariant = batch_invariant;
  need.max_num_rows = limits.max_num_seqs;
  need.max_num_toks = limits.max_num_toks;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<int32_t>(g);
    const std::vector<AttentionNeed> needs = attention_needs(layers, kv, group, need);
    if (needs.empty()) {
      backends_.push_back(nullptr);
      continue;
    }
    backends_.push_back(
        value_or_throw(make_attention_backend(kv.backends[g], device.facts(), needs)));
    AttentionLimits of_group;
    of_group.kv = kv_layer_view({groups_, 0}, {group, 0}, nullptr);
    of_group.num_heads = kv.num_heads[g];
    of_group.max_num_rows = limits.max_num_seqs;
    of_group.decode_len = limits.decode_len();
    of_group.batch_invariant = batch_invariant;
    of_group.max_num_toks = limits.max_num_toks;
    of_group.max_num_blocks = tables.max_blocks(group);
    of_group.num_table_cells = tables.view(group).num_cells;
    backends_[g]->allocate(workspace, device, of_group);
    forward_[g].backend = backends_[g].get();
  }
}

void AttentionGroups::prepare(Stream& stream,
                              const InputBatch& batch,
                              const InputBuffers& inputs,
                              const BlockTables& tables) {
  const int64_t max_toks = inputs.max_num_toks;
  AttentionMetadata base;
  base.batch = {make_view(batch.device.idx_mapping, inputs.max_num_seqs),
                make_view(batch.device.query_start_loc, inputs.max_num_seqs + 1),
                make_view<const int32_t>(inputs.seq_lens, inputs.max_num_seqs),
                batch.num_rows_padded,
                batch.num_toks_padded,
                batch.num_decode_rows,
                batch.num_decode_toks,
                batch.decode_len,
                batch.most_prompt_keys,
                make_view(batch.device.cu_num_logits, inputs.max_num_seqs + 1)};
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (backends_[g] == nullptr) {
      continue;
    }
    base.block_table = tables.view(static_cast<int32_t>(g));
    base.slot_mapping = make_view<const int64_t>(
        inputs.slot_mapping + static_cast<int64_t>(g) * max_toks, max_toks);
    forward_[g].metadata = forward_[g].backend->build_metadata(stream, groups_[g], base);
  }
}

GraphSupport AttentionGroups::graph_support() const {
  auto weakest = GraphSupport::kAlways;
  for (const auto& backend : backends_) {
    if (backend != nullptr) {
      weakest = std::min(weakest, backend->capabilities().graph_support);
    }
  }
  return weakest;
}

std::string AttentionGroups::names() const {
  std::string names;
  for (const auto& backend : backends_) {
    if (backend == nullptr) {
      continue;
    }
    names += (names.empty() ? "" : ",") + std::string(backend->capabilities().name);
  }
  return names;
}

}  // namespace warprow
