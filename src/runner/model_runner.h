// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_context.h"
#include "device/device.h"
#include "kernels/sample/sample.h"
#include "models/model.h"
#include "runner/attention_groups.h"
#include "runner/block_tables.h"
#include "runner/features/feature.h"
#include "runner/graphs/graph_cache.h"
#include "runner/graphs/graph_plan.h"
#include "runner/input_batch.h"
#include "runner/kv_cache.h"
#include "runner/logits_head.h"
#include "runner/operations.h"
#include "runner/ops/runner_ops.h"
#include "runner/output_ring.h"
#include "runner/rows.h"
#include "runner/runner.h"
#include "runner/sample/sampler.h"
#include "runner/stage_link.h"
#include "runner/staged_writes.h"
#include "runner/step_upload.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"
#include "wire/token_lists.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace warprow {

struct RunnerOptions {
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 512;
  int32_t max_model_len = 2048;
  int32_t max_steps_in_flight = 2;
  int32_t max_drafts = 0;        // draft tokens of a row in a step; 0: no speculation
  int32_t draft_lookahead = 0;   // positions behind a step's tokens that a proposer writes
  TokenPages token_pages;        // no pages: as many as all rows can use
  bool batch_invariant = false;  // for attention; the model's layers have their own flag
  GraphOptions graphs;
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
  int32_t max_logprobs = 0;  // that a row may ask for; kMaxLogprobIds are always possible
  FeatureOptions features;

  [[nodiscard]] StepLimits limits() const {
    return {max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            max_steps_in_flight,
            max_drafts,
            token_pages,
            std::max(max_logprobs, kMaxLogprobIds),
            draft_lookahead};
  }
};

// State between execute_model and sample_tokens: what the forward produced, at fixed addresses. Hidden states are
// in the InputBatch, where features read them.
struct ExecuteModelState {
  int64_t step = 0;
  LogitsShare logits;  // of num_logits_padded
};

// Turns "advance these rows by these many tokens" into one forward and its sampled tokens. Two
// phases: execute_model submits everything up to the logits, sample_tokens the rest; neither waits
// for the device. Results are taken later, in order.
//
// Ranks of a tensor-parallel group run the same steps with the same rows. Each has the forward of its part of the
// model, and the results of all (LogitsHead, Sampler).
//
// The stages of a pipeline also run the same steps with the same rows, one after the other. All but the last end with
// their layers, draw nothing and receive the results later (StageLink). Their own outputs have no results of rows.
//
// Owns: rows, tables, inputs, sampler, rings. The model and the KV cache are the worker's.
// Thread: one.
// Invariant: execute_model and sample_tokens alternate; at most max_steps_in_flight steps are
// outstanding; after construction a step allocates nothing.
class ModelRunner final : public Runner {
 public:
  ModelRunner(Device& device,
              Stream& stream,
              Model& model,
              const KvPlan& kv,
              RunnerArenas arenas,
              const RunnerOptions& options,
              const RankGroup& ranks = {},
              const RankGroup& stages = {});

  // Binds the runner's KV cache, before the first step.
  void bind_kv_cache(const KvCache* cache) override { kv_cache_ = cache; }

  void execute_model(const SchedulerOutput& step) override;
  void sample_tokens(const GrammarOutput* grammar) override;

  // Whether the forward of the step just executed is done. Returns false only for steps that a feature votes to
  // mark: recording an event costs one more driver call.
  [[nodiscard]] bool forward_done() const override {
    return !link_.is_last() || forward_event_->reached();
  }

  // Adds attention_backends: the names of the groups' backends, separated by commas; and steps_with_maxima: how many steps
  // had LogitsForm::kMaxima.
  [[nodiscard]] Operations& operations() override { return operations_; }
  [[nodiscard]] std::vector<std::span<const std::byte>> lasting_state() const override {
    return {lasting_state_};
  }
  [[nodiscard]] const GraphStats& graph_stats() const override { return graphs_.stats(); }
  // Time that take_output spent waiting for the device, summed.
  [[nodiscard]] int64_t output_wait_ns() const override { return outputs_.wait_ns(); }
  [[nodiscard]] int32_t num_outstanding() const override { return outputs_.num_outstanding(); }
  [[nodiscard]] bool output_ready() const override { return outputs_.ready(); }
  void take_output(ModelRunnerOutput& output) override;

 private:
  void release_rows(const std::vector<RowId>& rows);
  void update_rows(const SchedulerOutput& step);
  void stage_drafts(const SchedulerOutput& step);
  void build_batch(const SchedulerOutput& step);
  void pad_batch(const SchedulerOutput& step, bool eager);
  void upload();
  void run_forward();
  void prepare_inputs();
  void run_layers();
  void decode_logits();
  void finish_on_stage();
  [[nodiscard]] uint64_t graph_variant(StepPart part, uint64_t start) const;
  void draw_tokens(int32_t num_items);
  void note_step(const SchedulerOutput& step);
  // Calls one hook of every feature, in registry order.
  template <typename Hook, typename... Args>
  void each(Hook hook, Args&&... args) {
    for (const std::unique_ptr<RunnerFeature>& feature : features_) {
      (*feature.*hook)(args...);
    }
  }

  Stream& stream_;
  Model& model_;
  RunnerOptions options_;
  StepLimits limits_;
  std::unique_ptr<RunnerOps> ops_;
  StagedTables staged_tables_;
  RequestRows rows_;
  BlockTables tables_;
  std::span<const std::byte> lasting_state_;  // of rows_ and tables_: the front of their arena
  StepUpload upload_;
  InputBuffers inputs_;
  std::unique_ptr<LogitsHead> head_;  // of the last stage; else null, as the next
  std::unique_ptr<Sampler> sampler_;
  StageLink link_;
  OutputRing outputs_;
  AttentionGroups attention_;
  GraphPlan graph_plan_;
  GraphCache graphs_;
  std::unique_ptr<Event> forward_event_;
  Operations operations_;
  std::vector<std::unique_ptr<RunnerFeature>> features_;
  StagedWrites staged_;  // sized by the tables of all members above
  const KvCache* kv_cache_ = nullptr;

  InputBatch batch_;
  ActView hidden_;  // of the last forward; empty before the last stage
  int64_t row_state_bytes_ = 0;
  int64_t steps_with_maxima_ = 0;
  std::optional<ExecuteModelState> pending_;
};

}  // namespace warprow
