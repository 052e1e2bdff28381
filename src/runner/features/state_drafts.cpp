// SPDX-License-Identifier: Apache-2.0
#include "runner/features/state_drafts.h"

#include "models/delta_net.h"
#include "models/model.h"
#include "runner/block_tables.h"
#include "runner/kv_cache.h"
#include "runner/sample/sampler.h"

#include <cstdint>
#include <vector>

namespace warprow {
namespace {

class StateDrafts final : public RunnerFeature {
 public:
  explicit StateDrafts(const RunnerParts& parts)
      : model_(*parts.model),
        kv_cache_(parts.kv_cache),
        inputs_(*parts.inputs),
        sampler_(*parts.sampler),
        max_num_seqs_(parts.limits.max_num_seqs) {
    for (int32_t g = 0; g < parts.block_tables->num_groups(); ++g) {
      tables_.push_back(parts.block_tables->view(g));
    }
  }

  // Recorded with the sampling part, so it covers all rows that the runner has.
  void after_rows(Stream& stream, const InputBatch& batch) override {
    AcceptedDrafts drafts;
    drafts.idx_mapping = make_view(batch.device.idx_mapping, max_num_seqs_);
    drafts.query_start_loc = make_view(batch.device.query_start_loc, max_num_seqs_ + 1);
    drafts.seq_lens = make_view<const int32_t>(inputs_.seq_lens, max_num_seqs_);
    drafts.cu_num_logits = make_view(batch.device.cu_num_logits, max_num_seqs_ + 1);
    drafts.num_sampled = make_view<const int32_t>(sampler_.arrays().num_sampled, max_num_seqs_);
    drafts.tables = tables_;
    drafts.kv_layers = (*kv_cache_)->layers();
    model_.take_drafts(stream, drafts);
  }

 private:
  Model& model_;
  const KvCache* const* kv_cache_;
  const InputBuffers& inputs_;
  const Sampler& sampler_;
  int64_t max_num_seqs_;
  std::vector<BlockTableView> tables_;  // by KV group
};

}  // namespace

std::unique_ptr<RunnerFeature> make_state_drafts(const RunnerParts& parts) {
  return std::make_unique<StateDrafts>(parts);
}

}  // namespace warprow
