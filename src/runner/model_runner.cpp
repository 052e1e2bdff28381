// SPDX-License-Identifier: Apache-2.0
#include "runner/model_runner.h"

#include "base/check.h"
#include "base/error.h"
#include "device/host_sync.h"
#include "device/range.h"
#include "device/step_note.h"
#include "kernels/sample/sample.h"
#include "runner/step_inputs.h"

#include <algorithm>
#include <utility>

namespace warprow {
namespace {

constexpr int32_t kDecodeLen = 1;  // tokens of a decoding row in a step
static_assert(RequestRows::kFirstBlockTable + kMaxKvGroups <= kMaxStagedTables);

// In one step every row may be new: a state, parameters, stop ids, token lists, and its blocks in
// every group.
int32_t max_staged_writes(const RunnerOptions& options, const BlockTables& tables) {
  return options.max_num_seqs * (4 + 2 * tables.num_groups());
}
int32_t max_staged_values(const RunnerOptions& options, const BlockTables& tables) {
  const int64_t words = (sizeof(RowState) + sizeof(SamplingParams)) / sizeof(int32_t) +
                        RequestRows::kStopIdsWidth + kTokenListsWidth;
  return static_cast<int32_t>(options.max_num_seqs * words + tables.max_values());
}

}  // namespace

ModelRunner::ModelRunner(Device& device,
                         Stream& stream,
                         Decoder& model,
                         const KvPlan& kv,
                         RunnerArenas arenas,
                         const RunnerOptions& options)
    : stream_(stream),
      model_(model),
      options_(options),
      groups_(kv.groups),
      ops_(make_runner_ops(device)),
      rows_(*arenas.state,
            device,
            options.max_num_seqs,
            options.max_model_len,
            options.max_steps_in_flight),
      tables_(*arenas.state,
              groups_,
              options.max_num_seqs,
              options.max_model_len,
              RequestRows::kFirstBlockTable),
      lasting_state_(arenas.state->base(), arenas.state->used()),
      staged_(max_staged_writes(options, tables_), max_staged_values(options, tables_)),
      upload_(device,
              *arenas.state,
              options.max_num_seqs,
              StagedWrites::max_packed_bytes(max_staged_writes(options, tables_),
                                             max_staged_values(options, tables_)),
              options.max_steps_in_flight + 1),
      inputs_(*arenas.state,
              options.max_num_seqs,
              options.max_num_batched_tokens,
              static_cast<int32_t>(groups_.size())),
      head_(model, *arenas.workspace, options.max_num_seqs, options.max_num_batched_tokens),
      sampler_(device,
               *arenas.workspace,
               {options.max_num_seqs, head_.max_rows(), model.spec().vocab_size},
               options.logprobs_mode),
      outputs_(device, options.max_steps_in_flight, options.max_num_seqs, Sampler::kMaxTop),
      forward_groups_(groups_.size()),
      forward_mark_(device),
      graphs_(device, options.graphs.reserved_bytes, options.graphs.capture_bytes) {
  auto weakest = GraphSupport::kAlways;
  for (size_t g = 0; g < groups_.size(); ++g) {
    backends_.push_back(value_or_throw(make_attention_backend(
        kv.backends[g], device.facts(), groups_[g], model.spec().num_heads)));
    AttentionLimits limits;
    limits.kv = kv_layer_view(groups_[g], nullptr);
    limits.num_heads = model.spec().num_heads;
    limits.window = groups_[g].window;
    limits.max_num_rows = options.max_num_seqs;
    limits.batch_invariant = options.batch_invariant;
    limits.max_num_toks = options.max_num_batched_tokens;
    limits.max_num_blocks = static_cast<int32_t>(tables_.table(static_cast<int32_t>(g)).shape[1]);
    backends_[g]->allocate(*arenas.workspace, device, limits);
    forward_groups_[g].backend = backends_[g].get();
    weakest = std::min(weakest, backends_[g]->capabilities().graph_support);
  }
  graph_plan_ = GraphPlan(options.graphs, weakest, kDecodeLen, options.max_num_seqs);
  features_ =
      make_features({.device = &device,
                     .groups = groups_,
                     .inputs = &inputs_,
                     .rows = &rows_,
                     .head = &head_,
                     .sampler = &sampler_,
                     .max_num_seqs = options.max_num_seqs,
                     .max_num_toks = options.max_num_batched_tokens,
                     .vocab_size = model.spec().vocab_size,
                     .output_entry = upload_.output_entry(),
                     .num_entries = options.max_steps_in_flight,
                     .forward_mark = &forward_mark_,
                     .hidden_bytes = options.hidden_states
                                         ? model.spec().hidden_size *
                                               static_cast<int64_t>(dtype_bytes(model.act_dtype()))
                                         : 0,
                     .debug_checks = options.debug_checks,
                     .step_times = options.step_times});
  rows_.fill_tables(staged_tables_);
  tables_.fill_tables(staged_tables_);
  batch_.rows.reserve(static_cast<size_t>(options.max_num_seqs));
  operations_.add("attention_backends",
                  [this](const std::string&) { return attention_backends(); });
}

void ModelRunner::execute_model(const SchedulerOutput& step) {
  WR_CHECK(
      !pending_, "execute_model before sample_tokens of step {}", pending_ ? pending_->step : 0);
  WR_CHECK_LT(num_outstanding(), options_.max_steps_in_flight);
  const ScopedNoHostSync no_sync(options_.debug_checks);
  set_step_note({step.step, static_cast<int32_t>(step.scheduled.size()), step.total_num_tokens});
  update_rows(step);
  build_batch(step);
  pad_batch(step);
  upload();
  for (const auto& feature : features_) {
    feature->before_forward(stream_, batch_);
  }
  run_forward();
  // A replayed forward does not say how many rows it computed.
  hidden_.shape[0] = batch_.num_toks_padded;
  batch_.hidden = hidden_;
  for (const auto& feature : features_) {
    feature->after_forward(stream_, batch_);
  }
  note_step(step);
  pending_ = ExecuteModelState{step.step, head_.last(batch_.num_logits_padded)};
}

// Everything between the upload and the logits, from a graph where the step has one.
void ModelRunner::run_forward() {
  const ScopedRange range("forward");
  ForwardContext context;
  context.groups = forward_groups_;
  context.kv_layers = kv_cache_->layers();
  context.graph_mode = batch_.graph_mode;
  context.num_toks = batch_.num_toks_padded;
  const ScopedForwardContext scope(stream_, context);
  const auto forward = [this] {
    const int32_t toks = batch_.num_toks_padded;
    hidden_ = model_
                  .forward(stream_,
                           {make_view<const int32_t>(inputs_.input_ids, toks),
                            make_view<const int32_t>(inputs_.positions, 1, toks)})
                  .hidden;
  };
  const auto whole_step = [&] {
    prepare_inputs();
    prepare_attention();
    forward();
    decode_logits();
  };
  GraphKey key{batch_.graph_mode, batch_.num_toks_padded};
  switch (batch_.graph_mode) {
    case GraphMode::kNone:
      whole_step();
      break;
    case GraphMode::kFull:
      key.num_rows = batch_.num_rows_padded;
      key.query_len = batch_.graph_query_len;
      key.features = static_cast<uint32_t>(batch_.num_logits_padded);
      graphs_.run_full(stream_, key, whole_step);
      break;
    case GraphMode::kPiecewise:
      prepare_inputs();
      prepare_attention();
      graphs_.run_piecewise(stream_, key, context, forward);
      decode_logits();
      break;
  }
}

void ModelRunner::decode_logits() {
  const int32_t n = batch_.num_logits_padded;
  if (n == 0) {
    return;
  }
  ActView hidden = hidden_;
  hidden.shape[0] = batch_.num_toks_padded;
  head_.of_picked(stream_, hidden, make_view<const int32_t>(inputs_.logits_indices, n));
}

void ModelRunner::sample_tokens(const GrammarOutput* grammar) {
  WR_CHECK(pending_.has_value(), "sample_tokens without execute_model");
  const ScopedRange range("sample");
  const ScopedNoHostSync no_sync(options_.debug_checks);
  for (const auto& feature : features_) {
    feature->prepare_sample(batch_, grammar, outputs_.next_entry());
  }
  if (batch_.num_logits > 0) {
    const auto draw = [this] { draw_tokens(); };
    if (graph_plan_.sample_rows(batch_.num_logits) > 0) {
      graphs_.run_full(stream_, sample_key(), draw);
    } else {
      draw();
    }
  }
  for (const auto& feature : features_) {
    feature->after_sample(stream_, batch_);
  }
  outputs_.submit(stream_);
  pending_.reset();
}

// What the sample graph depends on: its rows, the rules any of them asks for, and what features put
// in front.
GraphKey ModelRunner::sample_key() const {
  GraphKey key{GraphMode::kFull, 0, batch_.num_logits_padded, 0, batch_.sample_rules};
  uint32_t bit = kAllSampleRules + 1;
  for (const auto& feature : features_) {
    key.features |= bit * feature->sample_key();
    bit <<= 1;
  }
  return key;
}

// From the logits to the rows' next state and the host's ring.
void ModelRunner::draw_tokens() {
  const int32_t n = batch_.num_logits_padded;
  for (const auto& feature : features_) {
    feature->before_sample(stream_, pending_->logits);
  }
  const uint32_t rules = batch_.sample_rules;
  sampler_.sample(stream_, pending_->logits, inputs_, rows_, rules);
  const SampledArrays& sampled = sampler_.arrays();
  Epilogue op;
  op.count = {batch_.device, inputs_.logit_row, sampled.num_sampled, sampled.num_rejected};
  op.update = {batch_.device,
               sampled.tokens,
               1,
               sampled.num_sampled,
               sampled.num_rejected,
               rows_.history(),
               rows_.history_stride()};
  op.publish = {sampled,
                outputs_.arrays(),
                upload_.output_entry(),
                outputs_.entry_stride(),
                1,
                Sampler::kMaxTop,
                (rules & kSampleLogprobs) != 0};
  ops_->epilogue(stream_, op, n);
}

void ModelRunner::take_output(ModelRunnerOutput& output) {
  const ScopedRange range("take_output");
  outputs_.take(output);
  for (const auto& feature : features_) {
    feature->on_output(output);
  }
  done_step_ = output.step;
}

void ModelRunner::release_rows(const std::vector<RowId>& rows) {
  for (const RowId row : rows) {
    rows_.release(row);
    for (const auto& feature : features_) {
      feature->on_row_removed(row);
    }
  }
}

// Rows are released before they are given out again; nothing is cleared on the device.
void ModelRunner::update_rows(const SchedulerOutput& step) {
  const ScopedRange range("update_rows");
  release_rows(step.finished_rows);
  release_rows(step.preempted_rows);
  for (const NewRow& row : step.new_rows) {
    rows_.add(row, step, done_step_, staged_);
    for (const auto& feature : features_) {
      feature->on_row_added(row);
    }
  }
  for (const BlockAppend& append : step.block_appends) {
    const std::span blocks(step.block_ids);
    tables_.append(append,
                   blocks.subspan(static_cast<size_t>(append.blocks.begin),
                                  static_cast<size_t>(append.blocks.count)),
                   staged_);
  }
  for (const auto& feature : features_) {
    feature->stage(step);
  }
}

void ModelRunner::build_batch(const SchedulerOutput& step) {
  WR_CHECK_LE(step.scheduled.size(), options_.max_num_seqs);
  WR_CHECK_LE(step.total_num_tokens, options_.max_num_batched_tokens);
  WR_CHECK_LE(step.data_parallel.num_toks_padded, options_.max_num_batched_tokens);
  batch_.order(step.scheduled, kDecodeLen);
  batch_.num_rows = static_cast<int32_t>(batch_.rows.size());
  batch_.num_toks = step.total_num_tokens;
  batch_.num_logits = batch_.num_rows;  // one a row: no drafts to verify
  batch_.num_decode_rows = 0;
  batch_.num_prefill_rows = 0;
  batch_.sample_rules = 0;
  for (const ScheduledRow& row : batch_.rows) {
    const RequestRows::Host& host = rows_.host(row.row);
    WR_CHECK(host.live, "row {} is scheduled but not live", index_of(row.row));
    WR_CHECK_EQ(row.num_drafts, 0);
    batch_.num_decode_rows += row.num_tokens == 1 ? 1 : 0;
    batch_.num_prefill_rows += row.num_computed_tokens < host.prefill_len ? 1 : 0;
    batch_.sample_rules |= host.sample_rules;
  }
}

// Chooses how the step runs and the sizes that go with it. A row has one logit, so rows and logits
// are padded alike.
void ModelRunner::pad_batch(const SchedulerOutput& step) {
  const int32_t query_len = uniform_query_len(batch_.rows);
  const int32_t toks = std::max(batch_.num_toks, step.data_parallel.num_toks_padded);
  const GraphChoice choice = graph_plan_.choose({toks, batch_.num_rows, query_len});
  batch_.graph_mode = choice.mode;
  batch_.graph_query_len = choice.query_len;
  if (choice.too_large) {
    graphs_.note_too_large();
  }
  batch_.num_toks_padded = choice.num_toks;
  batch_.num_rows_padded = choice.num_rows;
  const int32_t sampled = graph_plan_.sample_rows(batch_.num_logits);
  batch_.num_logits_padded = sampled > 0 ? sampled : batch_.num_logits;
  if (choice.mode == GraphMode::kFull) {
    batch_.num_decode_rows = choice.query_len == 1 ? choice.num_rows : 0;
  }
}

void ModelRunner::upload() {
  const ScopedRange range("upload");
  const StepUpload::Entry entry = upload_.begin(num_outstanding());
  *entry.output_entry = outputs_.next_entry();
  write_layout(batch_, options_.max_num_seqs, entry);
  const StagedWrites::Packed packed = staged_.pack(entry.staged);
  row_state_bytes_ = packed.bytes;
  batch_.device = {
      upload_.idx_mapping(), upload_.query_start_loc(), upload_.cu_num_logits(), rows_.states()};
  UnpackStep unpack;
  std::copy(std::begin(staged_tables_), std::end(staged_tables_), std::begin(unpack.staged.tables));
  upload_.submit(unpack, packed);
  ops_->unpack_step(stream_, unpack, packed.num_groups);
}

void ModelRunner::prepare_inputs() {
  ops_->prologue(stream_, make_prologue(batch_, inputs_, rows_, tables_));
}

void ModelRunner::prepare_attention() {
  const int64_t max_toks = options_.max_num_batched_tokens;
  AttentionMetadata base;
  base.batch = {make_view(batch_.device.idx_mapping, options_.max_num_seqs),
                make_view(batch_.device.query_start_loc, options_.max_num_seqs + 1),
                make_view<const int32_t>(inputs_.seq_lens, options_.max_num_seqs),
                batch_.num_rows_padded,
                batch_.num_toks_padded,
                batch_.num_decode_rows};
  for (int32_t g = 0; g < tables_.num_groups(); ++g) {
    base.block_table = tables_.table(g);
    base.slot_mapping = make_view<const int64_t>(inputs_.slot_mapping + g * max_toks, max_toks);
    ForwardGroup& group = forward_groups_[static_cast<size_t>(g)];
    group.metadata = group.backend->build_metadata(stream_, groups_[static_cast<size_t>(g)], base);
  }
}

// What the host will need to read the step's results.
void ModelRunner::note_step(const SchedulerOutput& step) {
  PendingStep& pending = outputs_.pending();
  pending.step = step.step;
  pending.with_logprobs = (batch_.sample_rules & kSampleLogprobs) != 0;
  pending.rows.clear();
  for (const ScheduledRow& row : batch_.rows) {
    const RequestRows::Host& host = rows_.host(row.row);
    pending.rows.push_back({row.row, host.generation, host.num_logprobs});
  }
  pending.stats = {};
  pending.stats.num_rows = batch_.num_rows;
  pending.stats.num_toks = batch_.num_toks;
  pending.stats.num_prefill_rows = batch_.num_prefill_rows;
  pending.stats.num_toks_padded = batch_.num_toks_padded;
  pending.stats.graph_mode = static_cast<int32_t>(batch_.graph_mode);
  pending.stats.row_state_bytes = row_state_bytes_;
}

std::string ModelRunner::attention_backends() const {
  std::string names;
  for (const auto& backend : backends_) {
    names += (names.empty() ? "" : ",") + std::string(backend->capabilities().name);
  }
  return names;
}

}  // namespace warprow
