// SPDX-License-Identifier: Apache-2.0
#include "runner/model_runner.h"

#include "base/check.h"
#include "device/host_sync.h"
#include "device/range.h"
#include "device/step_note.h"
#include "kernels/sample/sample.h"
#include "runner/step_inputs.h"

#include <algorithm>
#include <utility>

namespace warprow {
namespace {

std::unique_ptr<LogitsHead> make_head(Model& model,
                                      Arena& workspace,
                                      const StepLimits& limits,
                                      const RankGroup& ranks) {
  return model.facts().last_stage ? std::make_unique<LogitsHead>(model, workspace, limits, ranks)
                                  : nullptr;
}

std::unique_ptr<Sampler> make_sampler(Device& device,
                                      Arena& workspace,
                                      const Model& model,
                                      const LogitsHead* head,
                                      const StepLimits& limits,
                                      const RunnerOptions& options,
                                      const RankGroup& ranks) {
  if (head == nullptr) {
    return nullptr;
  }
  const Sampler::Sizes sizes{limits.max_num_seqs,
                             limits.max_logits(),
                             head->max_rows(),
                             model.facts().vocab_size,
                             limits.max_top};
  return std::make_unique<Sampler>(device, workspace, sizes, options.logprobs_mode, ranks);
}

}  // namespace

ModelRunner::ModelRunner(Device& device,
                         Stream& stream,
                         Model& model,
                         const KvPlan& kv,
                         RunnerArenas arenas,
                         const RunnerOptions& options,
                         const RankGroup& ranks,
                         const RankGroup& stages)
    : stream_(stream),
      model_(model),
      options_(options),
      limits_(options.limits()),
      ops_(make_runner_ops(device)),
      rows_(*arenas.state, device, limits_, staged_tables_),
      tables_(*arenas.state, kv.groups, limits_, staged_tables_),
      lasting_state_(arenas.state->base(), arenas.state->used()),
      upload_(*arenas.state, limits_.max_num_seqs),
      inputs_(*arenas.state, limits_, tables_.num_groups()),
      head_(make_head(model, *arenas.workspace, limits_, ranks)),
      sampler_(
          make_sampler(device, *arenas.workspace, model, head_.get(), limits_, options, ranks)),
      link_(*arenas.workspace, limits_, stages),
      outputs_(device, limits_, limits_.max_top),
      attention_(device,
                 *arenas.workspace,
                 kv,
                 model.facts().mixers,
                 tables_,
                 limits_,
                 options.batch_invariant),
      graph_plan_(
          options.graphs, attention_.graph_support(), limits_.decode_len(), limits_.max_num_seqs),
      graphs_(device, options.graphs),
      forward_event_(device.make_event()),
      features_(make_features({.device = &device,
                               .arenas = arenas,
                               .limits = limits_,
                               .tensor = ranks,
                               .model = &model,
                               .groups = kv.groups,
                               .kv_cache = &kv_cache_,
                               .inputs = &inputs_,
                               .rows = &rows_,
                               .block_tables = &tables_,
                               .staged_tables = &staged_tables_,
                               .upload = &upload_,
                               .head = head_.get(),
                               .sampler = sampler_.get(),
                               .ops = ops_.get(),
                               .operations = &operations_},
                              options.features)),
      staged_(staged_tables_.max_writes(), staged_tables_.max_values()) {
  upload_.make_ring(
      device,
      StagedWrites::max_packed_bytes(staged_tables_.max_writes(), staged_tables_.max_values()),
      limits_.max_steps_in_flight + 1);
  batch_.rows.reserve(static_cast<size_t>(limits_.max_num_seqs));
  operations_.add("attention_backends", [this](const std::string&) { return attention_.names(); });
  operations_.add("steps_with_maxima",
                  [this](const std::string&) { return std::to_string(steps_with_maxima_); });
}

void ModelRunner::execute_model(const SchedulerOutput& step) {
  WR_CHECK(
      !pending_, "execute_model before sample_tokens of step {}", pending_ ? pending_->step : 0);
  WR_CHECK_LT(num_outstanding(), limits_.max_steps_in_flight);
  const ScopedNoHostSync no_sync(options_.features.debug_checks);
  set_step_note({step.step, static_cast<int32_t>(step.scheduled.size()), step.total_num_tokens});
  update_rows(step);
  build_batch(step);
  link_.receive_results(stream_, *ops_, rows_, step.results_through);
  upload();
  each(&RunnerFeature::before_forward, stream_, batch_);
  const View<float, 2> residual =
      model_.residual_room(std::max(batch_.num_toks, step.data_parallel.num_toks_padded));
  link_.receive_residual(stream_, residual);
  run_forward();
  link_.send_residual(stream_, residual);
  // A replayed forward does not return the number of rows it computed.
  hidden_.shape[0] = batch_.num_toks_padded;
  batch_.hidden = hidden_;
  if (batch_.mark_forward) {
    stream_.record(*forward_event_);
  }
  each(&RunnerFeature::after_forward, stream_, batch_);
  note_step(step);
  pending_ = ExecuteModelState{step.step, {}};
  if (head_ != nullptr) {
    pending_->logits = head_->last(batch_.num_logits_padded, batch_.logits_form);
  }
}

// Everything between the upload and the logits, from a graph if the step has one.
void ModelRunner::run_forward() {
  const ScopedRange range("forward");
  ForwardContext context;
  context.groups = attention_.groups();
  context.kv_layers = kv_cache_->layers();
  context.graph_mode = batch_.graph_mode;
  context.num_toks = batch_.num_toks_padded;
  const ScopedForwardContext scope(stream_, context);
  const auto whole_step = [this] {
    prepare_inputs();
    run_layers();
    decode_logits();
  };
  GraphKey key{batch_.graph_mode, batch_.num_toks_padded};
  switch (batch_.graph_mode) {
    case GraphMode::kNone:
      whole_step();
      break;
    case GraphMode::kFull:
      key.num_rows = batch_.num_rows_padded;
      key.num_logits = batch_.num_logits_padded;
      key.query_len = batch_.graph_query_len;
      key.variant = graph_variant(StepPart::kForward, static_cast<uint64_t>(batch_.logits_form));
      graphs_.run_full(stream_, key, whole_step);
      break;
    case GraphMode::kPiecewise:
      prepare_inputs();
      key.variant = graph_variant(StepPart::kForward, 0);
      graphs_.run_piecewise(stream_, key, context, [this] { run_layers(); });
      decode_logits();
      break;
  }
}

// Builds all inputs that the layers read, from the upload.
void ModelRunner::prepare_inputs() {
  ops_->prologue(stream_, make_prologue(batch_, inputs_, rows_, tables_));
  attention_.prepare(stream_, batch_, inputs_, tables_);
  each(&RunnerFeature::before_layers, stream_, batch_);
}

void ModelRunner::run_layers() {
  const int32_t toks = batch_.num_toks_padded;
  ModelInput in;
  in.positions = make_view<const int32_t>(inputs_.positions, 1, toks);
  in.num_toks = batch_.device.query_start_loc + inputs_.max_num_seqs;
  if (link_.is_first()) {
    in.input_ids = make_view<const int32_t>(inputs_.input_ids, toks);
    in.embeddings = inputs_.embeddings_of(toks);
  } else {
    in.residual = model_.residual_room(toks);
  }
  hidden_ = model_.forward(stream_, in).hidden;
}

void ModelRunner::decode_logits() {
  const int32_t n = batch_.num_logits_padded;
  if (n == 0 || head_ == nullptr) {
    return;
  }
  ActView hidden = hidden_;
  hidden.shape[0] = batch_.num_toks_padded;
  head_->of_picked(
      stream_, hidden, make_view<const int32_t>(inputs_.logits_indices, n), batch_.logits_form);
}

void ModelRunner::sample_tokens(const GrammarOutput* grammar) {
  WR_CHECK(pending_.has_value(), "sample_tokens without execute_model");
  if (!link_.is_last()) {
    finish_on_stage();
    return;
  }
  const ScopedRange range("sample");
  const ScopedNoHostSync no_sync(options_.features.debug_checks);
  each(&RunnerFeature::prepare_sample, batch_, grammar, outputs_.next_entry());
  if (batch_.sample_graph) {
    // A recorded graph serves any number of rows: rows past the step's own do nothing.
    const uint64_t form = static_cast<uint64_t>(batch_.logits_form) << 32;
    const uint64_t variant = graph_variant(StepPart::kSample, form | batch_.sample_rules);
    graphs_.run_full(stream_, {.num_logits = batch_.num_logits_padded, .variant = variant}, [this] {
      draw_tokens(limits_.max_num_seqs);
    });
  } else if (batch_.num_rows > 0) {
    draw_tokens(batch_.num_rows);
  }
  each(&RunnerFeature::after_sample, stream_, batch_);
  const SampledArrays& sampled = sampler_->arrays();
  link_.send_results(
      stream_,
      *ops_,
      {batch_.device, sampled.num_sampled, sampled.num_rejected, rows_.drafts(), link_.results()},
      batch_.num_rows);
  outputs_.submit(stream_);
  each(&RunnerFeature::after_event, stream_, batch_);
  pending_.reset();
}

// The end of a step on a stage that draws nothing.
void ModelRunner::finish_on_stage() {
  link_.advance_rows(stream_, *ops_, rows_, batch_, pending_->step);
  each(&RunnerFeature::after_sample, stream_, batch_);
  outputs_.submit(stream_);
  each(&RunnerFeature::after_event, stream_, batch_);
  pending_.reset();
}

// From the logits to the rows' next state and the output ring.
void ModelRunner::draw_tokens(int32_t num_items) {
  const bool with_logprobs = (batch_.sample_rules & kSampleLogprobs) != 0;
  if (batch_.num_logits_padded > 0) {
    each(&RunnerFeature::before_sample, stream_, pending_->logits);
    sampler_->sample(stream_, pending_->logits, inputs_, rows_, batch_.sample_rules);
  }
  const SampledArrays& sampled = sampler_->arrays();
  Epilogue op;
  op.count = {batch_.device,
              inputs_.logit_row,
              inputs_.logits_indices,
              inputs_.input_ids,
              sampled.tokens,
              sampled.num_sampled,
              sampled.num_rejected};
  op.update = {batch_.device,
               sampled.tokens,
               sampled.num_sampled,
               sampled.num_rejected,
               rows_.store().tokens()};
  op.publish = {batch_.device,
                sampled,
                outputs_.arrays(),
                upload_.output_entry(),
                outputs_.entry_stride(),
                limits_.max_top,
                with_logprobs};
  ops_->epilogue(stream_, op, num_items);
  each(&RunnerFeature::after_rows, stream_, batch_);
  if (limits_.max_drafts > 0) {
    ops_->publish_drafts(stream_,
                         {batch_.device,
                          rows_.drafts().tokens,
                          limits_.max_drafts,
                          outputs_.drafts(),
                          upload_.output_entry(),
                          outputs_.entry_stride()},
                         num_items);
  }
}

// Mixes the features' graph keys into one number for a GraphKey.
uint64_t ModelRunner::graph_variant(StepPart part, uint64_t start) const {
  uint64_t variant = start;
  for (const auto& feature : features_) {
    variant = mix_hash(variant, feature->graph_key(part));
  }
  return variant;
}

void ModelRunner::take_output(ModelRunnerOutput& output) {
  const ScopedRange range("take_output");
  outputs_.take(output);
  each(&RunnerFeature::on_output, output);
}

void ModelRunner::release_rows(const std::vector<RowId>& rows) {
  for (const RowId row : rows) {
    rows_.release(row);
    tables_.release(row);
    each(&RunnerFeature::on_row_removed, row);
  }
}

// Rows are released before they are given out again; nothing is cleared on the device.
void ModelRunner::update_rows(const SchedulerOutput& step) {
  const ScopedRange range("update_rows");
  release_rows(step.finished_rows);
  release_rows(step.preempted_rows);
  for (const PageAppend& append : step.page_appends) {
    rows_.append(append, step, staged_);
  }
  for (const NewRow& row : step.new_rows) {
    rows_.add(row, step, staged_);
    each(&RunnerFeature::on_row_added, row, step, staged_);
  }
  for (const BlockAppend& append : step.block_appends) {
    tables_.append(append, slice(step.block_ids, append.blocks));
  }
  tables_.stage(staged_);
  stage_drafts(step);
  each(&RunnerFeature::stage, step, staged_);
}

// Drafts sent by the host. A first draft of -1 means that the row uses the drafts on the device.
void ModelRunner::stage_drafts(const SchedulerOutput& step) {
  if (step.draft_token_ids.empty()) {
    return;
  }
  size_t at = 0;
  for (const ScheduledRow& row : step.scheduled) {
    const auto count = static_cast<size_t>(row.num_drafts);
    const std::span drafts = std::span(step.draft_token_ids).subspan(at, count);
    if (!drafts.empty() && drafts.front() >= 0) {
      rows_.set_drafts(row.row, drafts, staged_);
    }
    at += count;
  }
}

void ModelRunner::build_batch(const SchedulerOutput& step) {
  WR_CHECK_LE(step.scheduled.size(), limits_.max_num_seqs);
  WR_CHECK_LE(step.total_num_tokens, limits_.max_num_toks);
  WR_CHECK_LE(step.data_parallel.num_toks_padded, limits_.max_num_toks);
  batch_.order(step.scheduled, limits_.decode_len());
  StepVote vote{.rows = batch_.rows};
  each(&RunnerFeature::vote, vote);
  batch_.mark_forward = vote.mark_forward;
  batch_.num_rows = static_cast<int32_t>(batch_.rows.size());
  batch_.num_toks = step.total_num_tokens;
  int32_t num_logits = 0;
  int32_t most_logits = 0;
  int32_t num_prefill_rows = 0;
  uint32_t sample_rules = 0;
  for (const ScheduledRow& row : batch_.rows) {
    const RequestRows::Host& host = rows_.host(row.row);
    WR_CHECK(host.live, "row {} is scheduled but not live", index_of(row.row));
    num_prefill_rows += row.num_computed_tokens < host.prefill_len ? 1 : 0;
    num_logits += row.num_logits;
    most_logits = std::max({most_logits, row.num_logits, 1 + row.num_drafts});
    sample_rules |= row.num_logits > 0 ? host.sample_rules : 0;
  }
  WR_CHECK_LE(most_logits, limits_.decode_len());
  batch_.num_logits = num_logits;
  batch_.num_prefill_rows = num_prefill_rows;
  batch_.sample_rules = sample_rules;
  batch_.num_proposals = step.num_proposals < 0 ? limits_.max_drafts : step.num_proposals;
  WR_CHECK_LE(batch_.num_proposals, limits_.max_drafts);
  pad_batch(step, vote.eager);
  const bool maxima = head_ != nullptr && batch_.num_logits > 0 && sample_rules == 0 &&
                      !vote.reads_logits && head_->leaves_maxima(batch_.num_logits_padded);
  batch_.logits_form = maxima ? LogitsForm::kMaxima : LogitsForm::kAll;
  steps_with_maxima_ += maxima ? 1 : 0;
}

// Chooses how the step runs and its padded sizes.
void ModelRunner::pad_batch(const SchedulerOutput& step, bool eager) {
  const int32_t query_len = uniform_query_len(batch_.rows);
  const int32_t toks = std::max(batch_.num_toks, step.data_parallel.num_toks_padded);
  const GraphChoice choice = eager ? GraphChoice{GraphMode::kNone, toks, batch_.num_rows}
                                   : graph_plan_.choose({toks, batch_.num_rows, query_len});
  batch_.graph_mode = choice.mode;
  batch_.graph_query_len = choice.query_len;
  if (choice.too_large) {
    graphs_.note_too_large();
  }
  batch_.num_toks_padded = choice.num_toks;
  batch_.num_rows_padded = choice.num_rows;
  const int32_t sampled = eager ? 0 : graph_plan_.sample_rows(batch_.num_logits);
  batch_.sample_graph = sampled > 0;
  batch_.num_logits_padded = std::max(sampled, batch_.num_logits);
  if (choice.mode == GraphMode::kFull) {
    batch_.num_decode_rows = choice.query_len > 0 ? choice.num_rows : 0;
    batch_.num_decode_toks = choice.query_len * choice.num_rows;
    batch_.decode_len = std::max(choice.query_len, 1);
  }
}

void ModelRunner::upload() {
  const ScopedRange range("upload");
  const StepUpload::Entry entry = upload_.begin(num_outstanding());
  *entry.output_entry = outputs_.next_entry();
  write_layout(batch_, limits_.max_num_seqs, entry);
  const StagedWrites::Packed packed = staged_.pack(entry.staged);
  row_state_bytes_ = packed.bytes;
  batch_.device = {
      upload_.idx_mapping(), upload_.query_start_loc(), upload_.cu_num_logits(), rows_.states()};
  UnpackStep unpack;
  std::ranges::copy(staged_tables_.tables(), std::begin(unpack.staged.tables));
  upload_.submit(unpack, packed);
  ops_->unpack_step(stream_, unpack, packed.num_groups);
}

// Records what the host needs to read the step's results.
void ModelRunner::note_step(const SchedulerOutput& step) {
  PendingStep& pending = outputs_.pending();
  pending.step = step.step;
  pending.num_logits = static_cast<size_t>(batch_.num_logits);
  pending.with_logprobs = (batch_.sample_rules & kSampleLogprobs) != 0;
  pending.rows.clear();
  for (const ScheduledRow& row : batch_.rows) {
    const RequestRows::Host& host = rows_.host(row.row);
    pending.rows.push_back({row.row,
                            host.generation,
                            host.num_logprobs,
                            link_.is_last() ? row.num_logits : 0,
                            link_.is_last() && row.wants_drafts});
  }
  pending.stats = {};
  pending.stats.num_rows = batch_.num_rows;
  pending.stats.num_toks = batch_.num_toks;
  pending.stats.num_prefill_rows = batch_.num_prefill_rows;
  pending.stats.num_toks_padded = batch_.num_toks_padded;
  pending.stats.graph_mode = static_cast<int32_t>(batch_.graph_mode);
  pending.stats.row_state_bytes = row_state_bytes_;
}

}  // namespace warprow
