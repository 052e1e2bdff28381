// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_context.h"
#include "device/device.h"
#include "models/decoder.h"
#include "runner/block_tables.h"
#include "runner/features/feature.h"
#include "runner/features/forward_mark.h"
#include "runner/graphs/graph_cache.h"
#include "runner/graphs/graph_plan.h"
#include "runner/input_batch.h"
#include "runner/kv_cache.h"
#include "runner/logits_head.h"
#include "runner/ops/runner_ops.h"
#include "runner/output_ring.h"
#include "runner/rows.h"
#include "runner/runner.h"
#include "runner/sample/sampler.h"
#include "runner/staged_writes.h"
#include "runner/step_upload.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

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
  bool batch_invariant = false;  // of attention; the model's layers have their own
  GraphOptions graphs;
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
  bool hidden_states = false;       // requests may ask for them
  bool debug_checks = false;        // features that verify each step (tests)
  StepTimes* step_times = nullptr;  // gets device times of steps; null: none are taken
};

// Device memory of a runner, by purpose. Capacities are what the memory plan computed.
struct RunnerArenas {
  Arena* state = nullptr;      // rows, tables, inputs
  Arena* workspace = nullptr;  // activations, logits, sampler
};

// Between execute_model and sample_tokens: what the forward left behind, at fixed addresses. Hidden
// states are in the InputBatch, where features find them.
struct ExecuteModelState {
  int64_t step = 0;
  View<float, 2> logits;  // dev f32 [num_logits_padded, vocab_size]
};

// Turns "advance these rows by these many tokens" into one forward and its sampled tokens. Two
// phases: execute_model submits everything up to the logits, sample_tokens the rest; neither waits
// for the device. Results are taken later, in order.
//
// Owns: rows, tables, inputs, sampler, rings. The model and the KV cache are the worker's.
// Thread: one.
// Invariant: execute_model and sample_tokens alternate; at most max_steps_in_flight steps are
// outstanding; after construction a step allocates nothing.
class ModelRunner final : public Runner {
 public:
  ModelRunner(Device& device,
              Stream& stream,
              Decoder& model,
              const KvPlan& kv,
              RunnerArenas arenas,
              const RunnerOptions& options);

  // Gives the runner its cache; before the first step.
  void bind_kv_cache(const KvCache* cache) override { kv_cache_ = cache; }

  void execute_model(const SchedulerOutput& step) override;
  void sample_tokens(const GrammarOutput* grammar) override;

  // Whether the forward of the step just executed is done; false only for steps with grammar rows.
  [[nodiscard]] bool forward_done() const override { return forward_mark_.reached(); }

  // Its own: attention_backends, the names of the groups' backends, separated by commas.
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
  void build_batch(const SchedulerOutput& step);
  void pad_batch(const SchedulerOutput& step);
  void upload();
  void run_forward();
  void prepare_inputs();
  void prepare_attention();
  void decode_logits();
  [[nodiscard]] std::string attention_backends() const;
  [[nodiscard]] GraphKey sample_key() const;
  void draw_tokens();
  void note_step(const SchedulerOutput& step);

  Stream& stream_;
  Decoder& model_;
  RunnerOptions options_;
  std::vector<KvGroupSpec> groups_;
  std::unique_ptr<RunnerOps> ops_;
  RequestRows rows_;
  BlockTables tables_;
  std::span<const std::byte> lasting_state_;  // rows_ and tables_: the front of their arena
  StagedWrites staged_;
  StepUpload upload_;
  InputBuffers inputs_;
  LogitsHead head_;
  Sampler sampler_;
  OutputRing outputs_;
  std::vector<std::unique_ptr<AttentionBackend>> backends_;  // by KV group
  std::vector<ForwardGroup> forward_groups_;                 // by KV group
  ForwardMark forward_mark_;
  std::vector<std::unique_ptr<RunnerFeature>> features_;
  GraphPlan graph_plan_;
  GraphCache graphs_;
  ActView hidden_;  // of the last forward
  const KvCache* kv_cache_ = nullptr;
  Operations operations_;

  InputBatch batch_;
  StagedTable staged_tables_[kMaxStagedTables];
  int64_t row_state_bytes_ = 0;
  int64_t done_step_ = 0;
  std::optional<ExecuteModelState> pending_;
};

}  // namespace warprow
