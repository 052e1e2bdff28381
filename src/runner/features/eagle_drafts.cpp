// SPDX-License-Identifier: Apache-2.0
#include "runner/features/eagle_drafts.h"

#include "attention/forward_context.h"
#include "kernels/gather/gather_rows.h"
#include "models/eagle_head.h"
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

// What the head's own forwards take at most.
StepLimits head_limits(const StepLimits& runner) {
  StepLimits limits = runner;
  limits.max_num_toks = most_head_toks(runner.max_num_seqs, runner.max_drafts);
  limits.max_drafts = 0;
  return limits;
}

// What its attention sees: these, and the runner's steps.
StepLimits head_attention_limits(const StepLimits& runner) {
  StepLimits limits = runner;
  limits.max_num_toks =
      std::max(runner.max_num_toks, most_head_toks(runner.max_num_seqs, runner.max_drafts));
  return limits;
}

// The model's head is divided where its layers are.
DraftVocab vocab_of(const RunnerParts& parts, const DraftModel& draft) {
  const EagleHead& head = *draft.head;
  const bool divided = draft.divided || head.spec().head.empty();
  return {head.spec().draft_vocab_size, head.vocab(), divided && !parts.tensor.alone(), head.ids()};
}

// Owns: the inputs and the attention of the head's forwards.
class EagleDrafts final : public RunnerFeature {
 public:
  EagleDrafts(const RunnerParts& parts, const DraftModel& draft)
      : model_(*parts.model),
        head_(*draft.head),
        first_layer_(draft.first_layer),
        max_num_seqs_(parts.limits.max_num_seqs),
        kv_cache_(parts.kv_cache),
        step_inputs_(*parts.inputs),
        rows_(*parts.rows),
        tables_(*parts.block_tables),
        sampler_(*parts.sampler),
        choice_(parts, vocab_of(parts, draft)),
        ops_(*parts.ops),
        attention_(*parts.device,
                   *parts.arenas.workspace,
                   draft.kv,
                   head_.mixers(),
                   tables_,
                   head_attention_limits(parts.limits),
                   draft.batch_invariant),
        inputs_(*parts.arenas.state, head_limits(parts.limits), tables_.num_groups()),
        next_ids_(parts.arenas.state->alloc<int32_t>(parts.limits.max_num_toks)),
        idx_mapping_(parts.arenas.state->alloc<int32_t>(max_num_seqs_)),
        query_start_loc_(parts.arenas.state->alloc<int32_t>(max_num_seqs_ + 1)),
        states_index_(parts.arenas.state->alloc<int32_t>(inputs_.max_num_toks)) {
    Arena& workspace = *parts.arenas.workspace;
    const int64_t width = head_.spec().states_size();
    const int64_t toks = inputs_.max_num_toks;
    const size_t bytes = static_cast<size_t>(toks * width) * dtype_bytes(head_.act_dtype());
    picked_ = ActView(head_.act_dtype(), workspace.alloc_bytes(bytes), toks, width);
    const int64_t hidden = head_.spec().decoder.hidden_size;
    last_ = make_view(workspace.alloc<float>(max_num_seqs_ * hidden), max_num_seqs_, hidden);
  }

  void vote(StepVote& vote) override {
    vote.eager = vote.eager || attention_.graph_support() < GraphSupport::kUniformBatch;
  }

  // Recorded sampling serves all numbers of rows up to a power of two, and of tokens of a row the step's.
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
    query_len_ = 1;  // behind a step with prompt tokens, which has been a step of the head
    if (batch.num_prefill_rows == 0) {
      for (const ScheduledRow& row : batch.rows) {
        query_len_ = std::max(query_len_, row.num_tokens);
      }
    }
  }
  [[nodiscard]] uint64_t graph_key(StepPart part) const override {
    constexpr uint64_t kLengths = 64;  // above any query_len_ and num_proposals_
    const auto lengths =
        static_cast<uint64_t>(query_len_) * kLengths + static_cast<uint64_t>(num_proposals_);
    return part == StepPart::kSample
               ? static_cast<uint64_t>(num_rows_) * kLengths * kLengths + lengths
               : 0;
  }

  // The positions of the step. The token behind a row's last position may not be known; that position follows in after_rows.
  void after_forward(Stream& stream, const InputBatch& batch) override {
    if (batch.num_prefill_rows == 0 || batch.num_proposals == 0) {
      return;
    }
    ops_.next_tokens(stream,
                     {batch.device,
                      rows_.store().tokens(),
                      step_inputs_.input_ids,
                      batch.num_rows,
                      batch.num_toks_padded,
                      head_.spec().hides_first,
                      next_ids_});
    EagleInput in;
    in.ids = make_view<const int32_t>(next_ids_, batch.num_toks_padded);
    in.positions = make_view<const int32_t>(step_inputs_.positions, batch.num_toks_padded);
    in.model_states = step_states(batch).rows(0, batch.num_toks_padded);
    in.num_toks = batch.device.query_start_loc + step_inputs_.max_num_seqs;
    forward(stream, batch, step_inputs_, in);
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
      mine.decode_len = made == 0 ? query_len_ : 1;
      mine.num_toks = mine.num_toks_padded = mine.num_decode_toks = num_rows_ * mine.decode_len;
      ops_.head_inputs(stream, inputs_of(batch, made, mine.decode_len));
      EagleInput in;
      in.ids = make_view<const int32_t>(inputs_.input_ids, mine.num_toks);
      in.positions = make_view<const int32_t>(inputs_.positions, mine.num_toks);
      if (made == 0) {
        in.model_states = picked_.rows(0, mine.num_toks);
        gather_rows(stream,
                    {step_states(batch),
                     make_view<const int32_t>(states_index_, mine.num_toks),
                     picked_.rows(0, mine.num_toks)});
      } else {
        in.own_states = ActView(last_).rows(0, num_rows_);
      }
      take_draft(stream, forward(stream, mine, inputs_, in), made);
    }
  }

 private:
  // The model's states that the head takes, of any step's tokens: recorded work serves steps of other sizes.
  [[nodiscard]] ActView step_states(const InputBatch& batch) const {
    const bool aux = head_.spec().kind == HeadKind::kEagle3;
    ActView states = aux ? model_.aux_states(0) : batch.hidden;
    states.shape[0] = step_inputs_.max_num_toks;
    return states;
  }

  [[nodiscard]] HeadInputs inputs_of(const InputBatch& batch,
                                     int32_t made,
                                     int32_t query_len) const {
    HeadInputs op;
    op.step = batch.device;
    op.num_sampled = sampler_.arrays().num_sampled;
    op.step_indices = step_inputs_.logits_indices;
    op.known = rows_.store().tokens();
    op.drafts = rows_.drafts();
    op.num_made = made;
    op.num_rows = num_rows_;
    op.query_len = query_len;
    op.hides_first = head_.spec().hides_first;
    op.idx_mapping = idx_mapping_;
    op.query_start_loc = query_start_loc_;
    op.seq_lens = inputs_.seq_lens;
    op.input_ids = inputs_.input_ids;
    op.positions = inputs_.positions;
    op.logits_indices = inputs_.logits_indices;
    op.states = states_index_;
    op.slots.num_groups = tables_.num_groups();
    op.slots.slots_stride = inputs_.max_num_toks;
    op.slots.slots = inputs_.slot_mapping;
    for (int32_t g = 0; g < tables_.num_groups(); ++g) {
      op.slots.groups[g] = {tables_.view(g), tables_.slot_block_size(g)};
    }
    return op;
  }

  // The head's states of a batch's tokens, whose keys and values it writes.
  View<float, 2> forward(Stream& stream,
                         const InputBatch& batch,
                         const InputBuffers& inputs,
                         const EagleInput& in) {
    attention_.prepare(stream, batch, inputs, tables_);
    ForwardContext context;
    context.groups = attention_.groups();
    context.kv_layers = (*kv_cache_)->layers().subspan(static_cast<size_t>(first_layer_));
    context.num_toks = batch.num_toks_padded;
    const ScopedForwardContext scope(stream, context);
    return head_.forward(stream, in);
  }

  void take_draft(Stream& stream, const View<float, 2>& states, int32_t made) {
    View<float, 2> last = last_;
    last.shape[0] = num_rows_;
    gather_rows(stream,
                {states, make_view<const int32_t>(inputs_.logits_indices, num_rows_), last});
    // The runner's logits of this step are not needed any more.
    choice_.make(
        stream, num_rows_, idx_mapping_, made, [&](int64_t first, const View<float, 2>& logits) {
          const int64_t hidden = last.shape[1];
          head_.compute_logits(
              stream,
              make_view<const float>(last.data + first * hidden, logits.shape[0], hidden),
              logits);
        });
  }

  Model& model_;
  EagleHead& head_;
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
  int32_t* next_ids_;         // dev i32 [max_num_toks]      of a step with prompt tokens
  int32_t* idx_mapping_;      // dev i32 [max_num_seqs]      rows that drafts are made for; else -1
  int32_t* query_start_loc_;  // dev i32 [max_num_seqs + 1]
  int32_t* states_index_;     // dev i32 [max_num_seqs * (1 + K)]
  ActView picked_;            // dev [max_num_seqs * (1 + K), states_size]
  View<float, 2> last_;       // dev f32 [max_num_seqs, hidden_size]  states behind the last draft
  int32_t num_rows_ = 0;      // of this step's forwards
  int32_t query_len_ = 1;     // of the first of them
};

}  // namespace

int32_t most_head_toks(int32_t max_num_seqs, int32_t num_drafts) {
  return max_num_seqs * (1 + num_drafts);
}

std::unique_ptr<RunnerFeature> make_eagle_drafts(const RunnerParts& parts,
                                                 const DraftModel& draft) {
  return std::make_unique<EagleDrafts>(parts, draft);
}

}  // namespace warprow
