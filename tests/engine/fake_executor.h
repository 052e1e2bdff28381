// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace warprow::testing {

struct FakeModel {
  int32_t vocab_size = 64;
  int32_t max_model_len = 128;
  int32_t max_num_seqs = 8;
  int32_t max_num_batched_tokens = 32;
  int32_t num_blocks = 65;
  int32_t block_size = 16;
  int32_t max_concurrent_batches = 2;
  std::chrono::microseconds step_time{0};
  std::chrono::microseconds tok_time{0};  // of a step, for each token, beside step_time
  int32_t target_itl_ms = 0;
  std::chrono::microseconds forward_time{
      0};                      // forward's share of a step; step_time covers the rest
  int64_t throw_at_step = -1;  // execute_model of this step (counted from 0) throws
  // Drafts proposed for each row's next step. Some are right; they follow the row's last mask.
  int32_t num_drafts = 0;
  bool forward_outlasts_masks = false;           // a forward ends only after its sample_tokens
  const std::atomic<bool>* gate_shut = nullptr;  // while it is true, no output is ready
  bool notifies_outputs = false;
  std::atomic<int>* empty_steps_wanted = nullptr;  // decremented by each step without tokens
};

// The toy model's next token for a context: a hash of all its tokens, and of the seed if the row samples.
TokenId toy_next_token(const std::vector<TokenId>& context,
                       const SamplingParams& params,
                       int32_t vocab_size);
// The next token among those that the mask allows. Without a mask all are allowed.
TokenId toy_masked_token(TokenId token, std::span<const uint32_t> mask, int32_t vocab_size);
// Logprobs of a toy token: recognisable numbers.
float toy_logprob(TokenId token);
int32_t toy_rank(TokenId token);

// An executor whose model is a hash function. It checks the whole contract: the order of the two phases, row lifetimes,
// positions, and a KV cache (one token id per slot) in which each row must find its own tokens.
//
// Thread: the engine's. With FakeModel::notifies_outputs it also starts its own.
class FakeExecutor : public Executor {
 public:
  explicit FakeExecutor(const FakeModel& model);
  ~FakeExecutor() override;

  [[nodiscard]] const ModelFacts& model_facts() const override { return facts_; }
  [[nodiscard]] int32_t max_concurrent_batches() const override {
    return model_.max_concurrent_batches;
  }
  void execute_model(const SchedulerOutput& step) override;
  void sample_tokens(const GrammarOutput* grammar) override;
  [[nodiscard]] bool forward_done() const override;
  [[nodiscard]] int32_t num_outstanding() const override {
    return static_cast<int32_t>(outputs_.size());
  }
  [[nodiscard]] bool output_ready() const override;
  void take_output(ModelRunnerOutput& output) override;
  // With FakeModel::notifies_outputs, another thread notifies of outputs when they are due.
  bool set_wake_up(WakeUp* wake_up) override;
  std::optional<DataParallelShape> idle_step() override;
  RankReplies collective_rpc(std::string_view operation,
                             const std::string& argument,
                             RankSet ranks) override;
  [[nodiscard]] ExecutorStats stats() const override { return stats_; }
  [[nodiscard]] int64_t num_block_copies() const { return num_block_copies_; }

 private:
  struct Row {
    bool live = false;
    uint32_t generation = 0;
    std::vector<TokenId> tokens;
    int32_t num_computed = 0;
    SamplingParams params;
    std::vector<BlockId> blocks;
    std::vector<TokenId> drafts{};      // drafts that follow tokens
    std::vector<uint32_t> last_mask{};  // empty: none
  };
  struct Pending {
    ModelRunnerOutput output;
    std::chrono::steady_clock::time_point ready_at;
  };

  [[nodiscard]] bool gate_is_shut() const {
    return model_.gate_shut != nullptr && *model_.gate_shut;
  }
  void notify_when_due(const std::stop_token& stop);
  Row& live_row(RowId id);
  void release(const std::vector<RowId>& rows);
  void add_rows(const SchedulerOutput& step);
  void append_blocks(const SchedulerOutput& step);
  void run_row(const ScheduledRow& scheduled,
               const GrammarOutput& grammar,
               ModelRunnerOutput& output);
  void write_kv(Row& row, const ScheduledRow& scheduled);
  void sample_row(Row& row,
                  const ScheduledRow& scheduled,
                  const GrammarOutput& grammar,
                  RowOutput& result,
                  ModelRunnerOutput& output);
  void sample(Row& row, std::span<const uint32_t> mask, ModelRunnerOutput& output);
  void propose(Row& row);

  FakeModel model_;
  ModelFacts facts_;
  std::vector<Row> rows_;
  std::vector<TokenId> kv_;  // [num_blocks * block_size]
  int64_t num_block_copies_ = 0;
  SchedulerOutput executing_;
  bool pending_sample_ = false;
  std::chrono::steady_clock::time_point forward_ends_at_;
  std::deque<Pending> outputs_;
  std::mt19937 random_{5};
  std::chrono::steady_clock::time_point device_free_at_;
  ExecutorStats stats_;

  std::mutex due_mutex_;
  std::condition_variable_any due_changed_;
  std::deque<std::chrono::steady_clock::time_point> due_;  // under the mutex, like the next
  WakeUp* wake_up_ = nullptr;
  std::jthread notifier_;
};

}  // namespace warprow::testing
