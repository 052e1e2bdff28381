// SPDX-License-Identifier: Apache-2.0
#include "runner/features/model_drafts.h"

#include "attention/forward_context.h"
#include "base/check.h"
#include "kernels/gather/gather_rows.h"
#include "models/model.h"
#include "runner/attention_groups.h"
#include "runner/block_tables.h"
#include "runner/features/draft_choice.h"
#include "runner/kv_cache.h"
#include "runner/ops/runner_ops.h"
#include "runner/rows.h"
#include "runner/sample/sampler.h"

#include <algorithm>
#include <bit>

namespace warprow {
namespace {

constexpr uint64_t kMostDrafts = 64;                     // above any num_proposals
constexpr int32_t kLongest = DraftInputs::query_len(0);  // tokens of a row in a forward, at most

// What the draft model's own forwards take at most.
StepLimits draft_limits(const StepLimits& runner) {
  StepLimits limits = runner;
  limits.max_num_toks = most_draft_model_toks(runner.max_num_seqs);
  limits.max_drafts = 0;
  return limits;
}

// What its attention sees: these, and the runner's steps.
StepLimits draft_attention_limits(const StepLimits& runner) {
  StepLimits limits = runner;
  limits.max_num_toks = std::max(runner.max_num_toks, most_draft_model_toks(runner.max_num_seqs));
  limits.max_drafts = std::max(runner.max_drafts, kLongest - 1);
  return limits;
}

// Owns: the inputs and the attention of the draft model's forwards.
class ModelDrafts final : public RunnerFeature {
 public:
  ModelDrafts(const RunnerParts& parts, const DraftModel& draft)
      : model_(*draft.model),
        first_layer_(draft.first_layer),
        max_num_seqs_(parts.limits.max_num_seqs),
        kv_cache_(parts.kv_cache),
        step_inputs_(*parts.inputs),
        rows_(*parts.rows),
        tables_(*parts.block_tables),
        sampler_(*parts.sampler),
        choice_(parts,
                {model_.facts().vocab_size,
                 model_.facts().vocab,
                 draft.divided && !parts.tensor.alone()}),
        ops_(*parts.ops),
        attention_(*parts.device,
                   *parts.arenas.workspace,
                   draft.kv,
                   model_.facts().mixers,
                   tables_,
                   draft_attention_limits(parts.limits),
                   draft.batch_invariant),
        inputs_(*parts.arenas.state, draft_limits(parts.limits), tables_.num_groups()),
        idx_mapping_(parts.arenas.state->alloc<int32_t>(max_num_seqs_)),
        query_start_loc_(parts.arenas.state->alloc<int32_t>(max_num_seqs_ + 1)) {
    const DType dtype = model_.facts().act_dtype;
    const int64_t width = model_.facts().hidden_size;
    const size_t bytes = static_cast<size_t>(max_num_seqs_ * width) * dtype_bytes(dtype);
    last_hidden_ = ActView(dtype, parts.arenas.workspace->alloc_bytes(bytes), max_num_seqs_, width);
  }

  void vote(StepVote& vote) override {
    vote.eager = vote.eager || attention_.graph_support() < GraphSupport::kUniformBatch;
  }

  // Recorded sampling serves all numbers of rows up to a power of two.
  void prepare_sample(const InputBatch& batch,
                      const GrammarOutput* /*grammar*/,
                      int32_t /*entry*/) override {
    num_rows_ = batch.num_rows;
    if (batch.sample_graph) {
      const auto padded = std::bit_ceil(static_cast<uint32_t>(std::max(batch.num_rows, 1)));
      num_rows_ = std::min(static_cast<int32_t>(padded), max_num_seqs_);
    }
    num_proposals_ = batch.num_proposals;
    if (batch.num_logits == 0 || num_proposals_ == 0) {
      num_rows_ = 0;
    }
  }
  [[nodiscard]] uint64_t graph_key(StepPart part) const override {
    return part == StepPart::kSample ? static_cast<uint64_t>(num_rows_) * kMostDrafts +
                                           static_cast<uint64_t>(num_proposals_)
                                     : 0;
  }

  void after_forward(Stream& stream, const InputBatch& batch) override {
    if (batch.num_prefill_rows == 0 || batch.num_proposals == 0) {
      return;
    }
    forward(stream, batch, step_inputs_);
  }

  void after_rows(Stream& stream, const InputBatch& batch) override {
    if (num_rows_ == 0) {
      return;
    }
    InputBatch mine;
    mine.num_rows = mine.num_rows_padded = mine.num_decode_rows = num_rows_;
    mine.device = batch.device;
    mine.device.idx_mapping = idx_mapping_;
    mine.device.query_start_loc = query_start_loc_;
    for (int32_t made = 0; made < num_proposals_; ++made) {
      mine.decode_len = DraftInputs::query_len(made);
      mine.num_toks = mine.num_toks_padded = mine.num_decode_toks = num_rows_ * mine.decode_len;
      ops_.draft_inputs(stream, inputs_of(batch, made));
      take_draft(stream, forward(stream, mine, inputs_), made);
    }
  }

 private:
  [[nodiscard]] DraftInputs inputs_of(const InputBatch& batch, int32_t made) const {
    DraftInputs op;
    op.step = batch.device;
    op.num_sampled = sampler_.arrays().num_sampled;
    op.known = rows_.store().tokens();
    op.drafts = rows_.drafts();
    op.num_made = made;
    op.num_rows = num_rows_;
    op.idx_mapping = idx_mapping_;
    op.query_start_loc = query_start_loc_;
    op.seq_lens = inputs_.seq_lens;
    op.input_ids = inputs_.input_ids;
    op.positions = inputs_.positions;
    op.logits_indices = inputs_.logits_indices;
    op.slots.num_groups = tables_.num_groups();
    op.slots.slots_stride = inputs_.max_num_toks;
    op.slots.slots = inputs_.slot_mapping;
    for (int32_t g = 0; g < tables_.num_groups(); ++g) {
      op.slots.groups[g] = {tables_.view(g), tables_.slot_block_size(g)};
    }
    return op;
  }

  // The hidden states of a batch's tokens, whose keys and values it writes.
  ActView forward(Stream& stream, const InputBatch& batch, const InputBuffers& inputs) {
    attention_.prepare(stream, batch, inputs, tables_);
    ForwardContext context;
    context.groups = attention_.groups();
    context.kv_layers = (*kv_cache_)->layers().subspan(static_cast<size_t>(first_layer_));
    context.num_toks = batch.num_toks_padded;
    const ScopedForwardContext scope(stream, context);
    ModelInput in;
    in.input_ids = make_view<const int32_t>(inputs.input_ids, batch.num_toks_padded);
    in.positions = make_view<const int32_t>(inputs.positions, 1, batch.num_toks_padded);
    return model_.forward(stream, in).hidden;
  }

  void take_draft(Stream& stream, const ActView& hidden, int32_t made) {
    ActView last = last_hidden_;
    last.shape[0] = num_rows_;
    gather_rows(stream,
                {hidden, make_view<const int32_t>(inputs_.logits_indices, num_rows_), last});
    // The runner's logits of this step are not needed any more.
    choice_.make(
        stream, num_rows_, idx_mapping_, made, [&](int64_t first, const View<float, 2>& logits) {
          model_.compute_logits(stream, last.rows(first, logits.shape[0]), logits);
        });
  }

  Model& model_;
  int32_t first_layer_;
  int32_t num_proposals_ = 0;  // of this step
  int32_t max_num_seqs_;
  const KvCache* const* kv_cache_;
  const InputBuffers& step_inputs_;
  const RequestRows& rows_;
  const BlockTables& tables_;
  const Sampler& sampler_;
  DraftChoice choice_;
  RunnerOps& ops_;
  AttentionGroups attention_;
  InputBuffers inputs_;
  int32_t* idx_mapping_;      // dev i32 [max_num_seqs]      rows that drafts are made for; else -1
  int32_t* query_start_loc_;  // dev i32 [max_num_seqs + 1]
  ActView last_hidden_;       // dev [max_num_seqs, hidden_size]
  int32_t num_rows_ = 0;      // of this step's forwards
};

}  // namespace

int32_t most_draft_model_toks(int32_t max_num_seqs) { return kLongest * max_num_seqs; }

std::unique_ptr<RunnerFeature> make_model_drafts(const RunnerParts& parts,
                                                 const DraftModel& draft) {
  return std::make_unique<ModelDrafts>(parts, draft);
}

}  // namespace warprow
