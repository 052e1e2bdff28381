// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_context.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda_device.h"
#include "engine/grammar_progress.h"
#include "engine/masked_sampling.h"
#include "executor/executor.h"
#include "executor/make_executor.h"
#include "sched/scheduler.h"
#include "tests/support/rank_threads.h"
#include "tests/support/serializing_executor.h"
#include "worker/model_plan.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace warprow::test {

// The options of a run under test. It runs on the CPU unless config.device is "cuda". With
// config.tensor_parallel_size and pipeline_parallel_size there are as many ranks, as threads of this process
// (rank_threads.h).
struct RigOptions {
  EngineConfig config;
  cpu::CpuDeviceOptions device;
  RunnerOptions runner;  // options without a flag: drafts, features
  bool debug_checks = true;
  bool serialize = false;                           // serialise and deserialise every message
  std::optional<KvLayout> kv_layout;                // overrides the configuration's
  std::function<void(SchedulerOutput&)> edit_step;  // changes a step between scheduler and executor
};

// A model in float32 on one thread, with room for eight rows of up to 256 tokens.
inline RigOptions small_options(const std::string& model) {
  RigOptions options;
  options.config.model = model;
  options.config.dtype = "float32";
  options.config.kv_cache_memory_bytes = int64_t{16} << 20;
  options.config.max_model_len = 256;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 128;
  options.config.threads = 1;
  options.device.num_threads = 1;
  return options;
}

// Tells the host of the drafts of every step (RigResult::proposed).
inline void want_drafts(SchedulerOutput& step) {
  for (ScheduledRow& row : step.scheduled) {
    row.wants_drafts = row.num_logits > 0;
  }
}

// --speculative-config with drafts from a row's own tokens. One token in common is enough, so many of them are wrong.
inline std::string ngram_config(int32_t num_drafts, bool adaptive = false) {
  return R"({"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3)"
         R"(, "num_speculative_tokens": )" +
         std::to_string(num_drafts) + R"(, "adaptive": )" + (adaptive ? "true}" : "false}");
}

// Drafts from a row's own tokens and the outputs of all rows. As many as fit for each matched token, so many are wrong.
inline std::string suffix_config(int32_t num_drafts, bool adaptive = false) {
  return R"({"method": "suffix", "suffix_decoding_max_spec_factor": 8)"
         R"(, "num_speculative_tokens": )" +
         std::to_string(num_drafts) + R"(, "adaptive": )" + (adaptive ? "true}" : "false}");
}

// Drafts of a model.
inline std::string draft_model_config(const std::string& model,
                                      int32_t num_drafts,
                                      bool adaptive = false) {
  return R"({"method": "draft_model", "model": ")" + model + R"(", "num_speculative_tokens": )" +
         std::to_string(num_drafts) + R"(, "adaptive": )" + (adaptive ? "true}" : "false}");
}

// Drafts of a head: method eagle or eagle3.
inline std::string head_config(const std::string& method,
                               const std::string& model,
                               int32_t num_drafts,
                               bool adaptive = false) {
  return R"({"method": ")" + method + R"(", "model": ")" + model +
         R"(", "num_speculative_tokens": )" + std::to_string(num_drafts) + R"(, "adaptive": )" +
         (adaptive ? "true}" : "false}");
}

// Adds verification by ratio to a --speculative-config that fixes the number of drafts.
inline std::string by_ratio(const std::string& config) {
  return config.substr(0, config.size() - 1) + R"(, "rejection_sample_method": "ratio"})";
}

struct RigResult {
  using Top = std::vector<std::pair<TokenId, float>>;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<Top> top;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<Top> prompt_top;
  std::vector<float> hidden;
  // Drafts that the host was told of, by the number of tokens before them.
  std::map<size_t, std::vector<TokenId>> proposed;
  FinishReason reason = FinishReason::kNone;
  int32_t num_cached_tokens = 0;
};

// Scheduler and executor without the engine's threads, advanced step by step by the test.
class ModelRig {
 public:
  explicit ModelRig(const RigOptions& options) : options_(options) {
    if (options_.device.num_threads > 0) {
      options_.config.threads = options_.device.num_threads;
    }
    options_.runner.features.debug_checks = options_.debug_checks;
    const RankPlace first =
        rank_place(0, options_.config.tensor_parallel_size, options_.config.pipeline_parallel_size);
    ModelPlan plan = plan_rank(first);
    options_.device.num_threads = plan.config.threads;
    SchedulerConfig config;
    config.max_num_seqs = plan.config.max_num_seqs;
    config.max_num_batched_tokens = plan.config.max_num_batched_tokens;
    config.max_model_len = plan.config.max_model_len;
    config.enable_prefix_caching = plan.config.enable_prefix_caching;
    config.enable_chunked_prefill = plan.config.enable_chunked_prefill;
    config.max_concurrent_steps = plan.runner.max_steps_in_flight;
    config.num_stages = first.pipeline.size;
    config.num_drafts = plan.runner.max_drafts;
    config.whole_drafts = plan.config.speculation.whole_drafts();
    config.draft_lookahead = plan.runner.draft_lookahead;
    config.draft_cost = plan.config.draft_cost;
    config.draft_knee = plan.config.draft_knee;
    config.draft_forward = plan.draft_forward;
    config.kv = plan.kv_cache;
    config.token_pages = plan.runner.token_pages;
    config.max_loras = plan.runner.features.lora.max_loras;
    if (first.world_size() > 1) {
      auto ranks = std::make_unique<RankThreads>(
          first.tensor.size,
          first.pipeline.size,
          [this](const RankPlace& place, const RankComms& comms) {
            return make_uniproc_executor(plan_rank(place), make_device(place.rank), comms);
          });
      ranks_ = ranks.get();
      executor_ = std::move(ranks);
    } else {
      executor_ = make_uniproc_executor(std::move(plan), make_device(0));
    }
    if (options_.serialize) {
      executor_ = std::make_unique<SerializingExecutor>(std::move(executor_));
    }
    scheduler_ = std::make_unique<Scheduler>(config);
    scheduler_->reserve(step_);
    grammars_ = std::make_unique<GrammarProgress>(
        executor_->model_facts().vocab_size,
        2,
        std::chrono::microseconds(options_.config.grammar_mask_delay_us),
        config.num_drafts);
    // Rows are withheld only where a test delays masks. Otherwise the machine's load would decide the steps.
    const bool withholds = options_.config.grammar_mask_delay_us > 0;
    sampling_ = std::make_unique<MaskedSampling>(
        *executor_,
        *scheduler_,
        *grammars_,
        withholds ? MaskedSampling::kGrace : std::chrono::microseconds(std::chrono::hours(1)));
  }

  void add(const Request& request) {
    results_[request.id] = {};
    value_or_throw(scheduler_->add_request(request));
  }
  void add(Request request, const Grammar& grammar) {
    request.grammar = grammars_->add(request.id, grammar);
    add(request);
  }

  // Loads a LoRA adapter, which requests may then name by this number.
  void load_adapter(int32_t id, const std::string& dir) {
    for (bool loading = true; loading;) {
      loading = false;
      for (const std::string& state : executor_->call(LoadLora{id, dir}).get()) {
        WR_CHECK(state == "loading" || state == "ready", "{}", state);
        loading = loading || state == "loading";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    scheduler_->adapters().add(id);
  }

  // One tick, as in the engine: submits a step if there is room, else takes the oldest output. Returns false when idle.
  bool tick() {
    end_finished_grammars();
    if (sampling_->due()) {
      if (sampling_->attempt() == MaskedSampling::Attempt::kNeedsOutput) {
        collect();
      }
      return true;
    }
    sampling_->resume_held();
    if (scheduler_->schedule(step_)) {
      if (options_.edit_step) {
        options_.edit_step(step_);
      }
      submit(step_);
    } else if (executor_->num_outstanding() > 0) {
      collect();
    } else if (sampling_->any_held()) {
      sampling_->wait();
    } else {
      return false;
    }
    return true;
  }

  std::map<uint64_t, RigResult>& run() {
    while (tick()) {
    }
    return results_;
  }

  void submit(const SchedulerOutput& step) {
    sampling_->start_newcomers(step);
    executor_->execute_model(step);
    if (step.grammar_rows.empty()) {
      executor_->sample_tokens(nullptr);
    } else {
      sampling_->begin(step);
    }
  }

  void collect() {
    executor_->take_output(output_);
    ++steps_by_mode_[output_.stats.graph_mode];
    scheduler_->update_from_output(output_, deltas_);
    for (const RequestDelta& delta : deltas_) {
      take(delta);
    }
  }

  [[nodiscard]] int64_t num_withheld() const { return sampling_->num_withheld(); }
  [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
  [[nodiscard]] Executor& executor() { return *executor_; }
  // There are none of a rank alone.
  [[nodiscard]] RankThreads& ranks() { return *ranks_; }
  // The first rank's CPU device. There is none if config.device is "cuda".
  [[nodiscard]] cpu::CpuDevice& device() { return *device_; }
  // How many of the collected steps ran in this way.
  [[nodiscard]] int64_t num_steps(GraphMode mode) {
    return steps_by_mode_[static_cast<int32_t>(mode)];
  }
  // Per KV group, comma-separated.
  [[nodiscard]] std::string attention_backends() {
    return executor_->call(ReadAttentionBackends{}).get().front();
  }
  // Runs a named operation on the only rank.
  [[nodiscard]] std::string call(const std::string& operation, const std::string& argument) {
    return executor_->collective_rpc(operation, argument, RankSet::all()).get().front();
  }
  [[nodiscard]] const SchedulerOutput& step() const { return step_; }
  [[nodiscard]] std::map<uint64_t, RigResult>& results() { return results_; }

 private:
  [[nodiscard]] bool on_gpu() const { return options_.config.device == "cuda"; }

  ModelPlan plan_rank(const RankPlace& place) const {
    ModelPlan plan = value_or_throw(plan_model(
        options_.config, this_machine(on_gpu() ? "cuda" : "cpu"), options_.runner, place));
    if (options_.kv_layout) {
      for (auto* groups : {&plan.kv.groups, &plan.kv_cache.groups}) {
        for (KvGroupSpec& group : *groups) {
          group.layout = *options_.kv_layout;
        }
      }
    }
    return plan;
  }

  std::unique_ptr<Device> make_device(int32_t rank) {
    if (on_gpu()) {
      return cuda::make_cuda_device();
    }
    auto device = cpu::make_cpu_device(options_.device);
    if (rank == 0) {
      device_ = device.get();
    }
    return device;
  }

  void end_finished_grammars() {
    std::vector<int32_t> places;
    grammars_->take_finished(places);
    for (const int32_t place : places) {
      const uint64_t id = grammars_->request_of(place);
      const bool complete = grammars_->state(place) == GrammarProgress::State::kEnded;
      results_[id].reason = complete ? FinishReason::kStop : FinishReason::kError;
      scheduler_->finish_request(id);
      grammars_->remove(place);
    }
  }

  void follow_grammar(const RequestDelta& delta) {
    if (delta.reason != FinishReason::kNone) {
      grammars_->remove(delta.grammar);
    } else {
      grammars_->accept(delta.grammar,
                        slice(output_.token_ids, delta.tokens),
                        slice(output_.draft_token_ids, delta.drafts));
    }
  }

  [[nodiscard]] RigResult::Top top_of(const TokenLogprobs& logprobs) const {
    RigResult::Top top;
    for (int32_t t = logprobs.top.begin; t < logprobs.top.begin + logprobs.top.count; ++t) {
      top.emplace_back(output_.top_ids[static_cast<size_t>(t)],
                       output_.top_logprobs[static_cast<size_t>(t)]);
    }
    return top;
  }

  void take(const RequestDelta& delta) {
    if (delta.grammar >= 0) {
      follow_grammar(delta);
    }
    RigResult& result = results_[delta.id];
    for (int32_t i = delta.tokens.begin; i < delta.tokens.begin + delta.tokens.count; ++i) {
      const auto at = static_cast<size_t>(i);
      result.tokens.push_back(output_.token_ids[at]);
      if (output_.has_logprobs) {
        result.logprobs.push_back(output_.logprobs[at]);
        result.top.push_back(top_of(output_.logprobs[at]));
      }
    }
    if (const auto drafts = slice(output_.draft_token_ids, delta.drafts); !drafts.empty()) {
      result.proposed[result.tokens.size()] = {drafts.begin(), drafts.end()};
    }
    const Span32 prompt = delta.prompt_logprobs;
    for (int32_t i = prompt.begin; i < prompt.begin + prompt.count; ++i) {
      const auto at = static_cast<size_t>(i);
      result.prompt_logprobs.push_back(output_.prompt_logprobs[at]);
      result.prompt_top.push_back(top_of(output_.prompt_logprobs[at]));
    }
    if (delta.hidden.count > 0) {
      const RowTensors& hidden = *output_.hidden_states;
      const auto first = hidden.values.begin() + int64_t{delta.hidden.begin} * hidden.width;
      result.hidden.insert(
          result.hidden.end(), first, first + int64_t{delta.hidden.count} * hidden.width);
    }
    if (delta.reason != FinishReason::kNone) {
      result.reason = delta.reason;
      result.num_cached_tokens = delta.num_cached_tokens;
    }
  }

  RigOptions options_;
  cpu::CpuDevice* device_ = nullptr;
  RankThreads* ranks_ = nullptr;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<GrammarProgress> grammars_;
  std::unique_ptr<MaskedSampling> sampling_;
  SchedulerOutput step_;
  ModelRunnerOutput output_;
  std::vector<RequestDelta> deltas_;
  std::map<uint64_t, RigResult> results_;
  std::map<int32_t, int64_t> steps_by_mode_;
};

}  // namespace warprow::test
