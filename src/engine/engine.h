// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/ids.h"
#include "config/engine_config.h"
#include "config/speculation.h"
#include "engine/adapters.h"
#include "engine/observe.h"
#include "engine/request.h"
#include "engine/request_log.h"
#include "engine/validate.h"
#include "executor/executor.h"
#include "sched/request.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace warprow {

struct TextModel;

using RequestId = uint64_t;

const char* finish_reason_name(FinishReason reason);  // "stop", "length", "abort", "error"

struct TokenLogprob {
  TokenId token_id = 0;
  float logprob = 0.0F;
};
struct LogprobEntry {
  TokenId token_id = 0;
  float logprob = 0.0F;
  int32_t rank = 0;
  std::vector<TokenLogprob> top;
};

struct RequestTimings {
  double queue_ms = 0;      // arrival to the first step that runs it
  double prompt_ms = 0;     // first step to first token
  double predicted_ms = 0;  // first to last token
};

// New output of a request: text that is safe to show (whole characters; a possible stop string is held back), and
// at the end the finish reason.
struct RequestUpdate {
  RequestId id = 0;
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<LogprobEntry> logprobs;  // parallel to token_ids when asked for
  // With the first token, when asked for: an entry for each prompt token but the first.
  std::vector<LogprobEntry> prompt_logprobs;
  // If requested: vectors of hidden_width floats, one for each of token_ids; with the first token also one for each
  // prompt token, if all were requested.
  std::vector<float> hidden_states;
  int32_t hidden_width = 0;
  // Of a pooling request, with its end: a vector of pooled_width floats, or one for each token of the prompt.
  std::vector<float> pooled;
  int32_t pooled_width = 0;
  FinishReason finish_reason = FinishReason::kNone;
  // The stop token id or the stop string that ended it.
  std::variant<std::monostate, int64_t, std::string> stop_reason;
  std::string error;              // with kError
  bool error_is_clients = false;  // 400: the constraints exclude every token
  // Set with the finish reason:
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;
  int32_t num_cached_tokens = 0;
  RequestTimings timings;
};

// Appends a later update of the same choice to `known`.
void join_update(RequestUpdate& known, RequestUpdate later);

// Called on the engine's output thread, in order for each request; the last call carries a finish
// reason. Must not block for long.
using UpdateCallback = std::function<void(const RequestUpdate&)>;

// Counters since start; names as they appear under --stats and in the JSON "stats".
struct EngineStats {
  int64_t steps = 0;  // with tokens
  int64_t mixed_steps = 0;
  int64_t partial_prefill_steps = 0;
  int64_t preemptions = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t max_steps_in_flight = 0;
  int64_t block_size = 0;
  int64_t num_blocks = 0;
  DType kv_dtype = DType::kBF16;  // of cached keys and values
  int64_t step_allocations = 0;
  int64_t row_state_bytes = 0;
  // Parts of steps that could use a graph, by how they ran; a step has two, the forward and sampling.
  int64_t graphs_full = 0;
  int64_t graphs_piecewise = 0;
  int64_t graphs_eager = 0;
  int64_t graph_captures = 0;
  int64_t graph_evictions = 0;  // captured parts evicted because the reservation was full
  int64_t graph_bytes = 0;
  int64_t padded_toks = 0;      // tokens of padding that forwards computed
  int64_t grammar_masks = 0;    // filled for structured requests
  int64_t grammar_mask_us = 0;  // time to fill them, over all workers
  int64_t withheld_rows = 0;    // steps that rows missed because their masks were late
  // Speculative decoding, under vLLM's names; all 0 without it.
  int64_t max_drafts = 0;                       // draft tokens of a row in a step
  int64_t spec_decode_num_drafts = 0;           // runs of draft tokens that were verified
  int64_t spec_decode_num_draft_tokens = 0;     // in these runs
  int64_t spec_decode_num_accepted_tokens = 0;  // of these
  std::array<int64_t, kMaxDrafts> spec_decode_num_accepted_tokens_per_pos{};
  int64_t spec_decode_num_undrafted = 0;  // decoding rows that got no drafts, as they would not pay
  // The adapters' limit and current uses, by LoadedAdapter::id; unloaded adapters that are still in use included.
  int32_t max_loras = 0;
  std::vector<AdapterUse> adapter_uses;
  // As they are now.
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  int32_t num_blocks_used = 0;  // of the KV cache, held by requests
};

// The loop around scheduler and executor: plan, submit, collect, one step ahead.
//
// Owns: the scheduler, the executor, one engine thread and one output thread (detokenise, stop
// strings, callbacks).
// Thread: submit, abort, stats and the observing calls from any thread.
// Invariant: every accepted request gets exactly one final update, also at shutdown (kAbort).
class Engine {
 public:
  virtual ~Engine() = default;  // aborts what runs, then joins the threads

  [[nodiscard]] virtual const ModelFacts& model_facts() const = 0;
  [[nodiscard]] virtual const TextModel& text() const = 0;

  // Turns a client's request into one that the engine can run: renders and encodes the prompt, checks every
  // limit.
  [[nodiscard]] virtual Result<ValidRequest> validate(const GenerationRequest& request) const = 0;
  // The same for each of these encoded prompts, in place of the request's own; what all share is encoded and
  // compiled once.
  [[nodiscard]] virtual Result<std::vector<ValidRequest>> validate_prompts(
      const GenerationRequest& request, std::vector<std::vector<TokenId>> prompts) const = 0;
  // The same for a request to a pooling model; a text's tokens include the special ones that the model's rules add.
  [[nodiscard]] virtual Result<ValidRequest> validate_pooling(
      const PoolingRequest& /*request*/) const {
    return fail(ErrorCode::kUnsupported, "the model has no embeddings or scores");
  }
  // Takes a request for one choice; see split_choices.
  virtual RequestId submit(ValidRequest request, UpdateCallback on_update) = 0;
  // Ends a request soon with kAbort; unknown or ended ids are ignored.
  virtual void abort(RequestId id) = 0;
  [[nodiscard]] virtual EngineStats stats() const = 0;

  // What ranks in other processes are doing, by rank; empty without such.
  [[nodiscard]] virtual std::vector<RankStatus> ranks() const { return {}; }
  // The engine thread's phase and progress; answers also while that thread is stuck.
  [[nodiscard]] virtual EngineProgress progress() const = 0;
  // The live requests at the end of the step under way; nullopt if the engine thread does not answer in time.
  // Blocks; must not be called from a callback.
  [[nodiscard]] virtual std::optional<std::vector<RequestStatus>> list_requests(
      std::chrono::milliseconds patience) = 0;
  [[nodiscard]] virtual const StepLog& steps() const = 0;
  // What happened to a request; nullopt if it is unknown or forgotten.
  [[nodiscard]] virtual std::optional<RequestHistory> history(RequestId /*id*/) const {
    return std::nullopt;
  }
  [[nodiscard]] virtual const MaskLog& mask_fills() const = 0;
  // Forgets every cached prefix. kInvalidArgument while requests run. Blocks; not from a callback.
  virtual Result<void> reset_prefix_cache() = 0;

  // Gives the memory of weights and KV cache back to the device (SleepMode in worker/sleep.h), after
  // ending every request with kAbort, as vLLM does. Level 1 keeps the weights in host memory; while
  // it sleeps requests are accepted and wait. Level 2 drops them; until they are back requests are
  // refused: validate() fails, and one validated before ends with kError. Returns each rank's
  // report, or why not. Blocks; not from a callback.
  virtual Result<std::vector<std::string>> sleep(int level) = 0;
  // Takes the memory again: of "weights", "kv_cache" or, for no tags, all. Steps run once both are
  // awake. Errors: an unknown tag; no memory left; weights that cannot be loaded.
  virtual Result<std::vector<std::string>> wake_up(const std::vector<std::string>& tags) = 0;
  [[nodiscard]] virtual bool is_sleeping() const = 0;

  // Loads a LoRA adapter from a directory that PEFT saved. Requests may name it when this returns; nothing that runs waits
  // for it. Errors: no --enable-lora, a name that is taken, no place, an adapter that does not fit. Blocks; not from a
  // callback.
  virtual Result<void> load_adapter(const std::string& /*name*/, const std::string& /*path*/) {
    return fail(ErrorCode::kUnsupported, "the engine has no adapters");
  }
  // New requests may no longer name it; those that do go on. kNotFound. Blocks; not from a callback.
  virtual Result<void> unload_adapter(const std::string& /*name*/) {
    return fail(ErrorCode::kUnsupported, "the engine has no adapters");
  }
  // Those that requests may name, in the order of loading.
  [[nodiscard]] virtual std::vector<LoadedAdapter> adapters() const { return {}; }

  // Runs no further step until resume(); new requests wait. kAbort: requests that run or wait end. kKeep: they go on after
  // resume() where they were. kWait: they run to their end, and the call blocks until then. Takes effect when the steps in
  // flight are done. A second call while paused changes only the requests. Errors: the engine has stopped; with kWait also
  // a resume() or another kWait meanwhile. Blocks; not from a callback.
  enum class PauseMode : uint8_t { kAbort, kKeep, kWait };
  virtual Result<void> pause(PauseMode mode) = 0;
  virtual Result<void> resume() = 0;
  [[nodiscard]] virtual bool is_paused() const = 0;

  // Replaces the weights by those of another checkpoint of the same model, in place: captured graphs and all memory
  // stay. Requests that pause() kept go on with the new weights from the tokens that they have; nothing computed before
  // is used. `model` is named as in the settings, and must be on this machine. Only while it is paused. Errors: another
  // model, or tensors of another type or shape; then the old weights count. Blocks; not from a callback.
  virtual Result<void> update_weights(const std::string& /*model*/) {
    return fail(ErrorCode::kUnsupported, "update_weights: the engine has no checkpoint");
  }
};

// Takes constructed parts, so that tests can pass their own executor; the command line uses load_engine.
std::unique_ptr<Engine> make_engine(const EngineConfig& config,
                                    std::unique_ptr<TextModel> text,
                                    std::unique_ptr<Executor> executor);

// Gets the executor before the engine does, to wrap it or to call it.
using WrapExecutor = std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)>;

// Loads text and weights side by side and starts the engine. Throws StartupError.
std::unique_ptr<Engine> load_engine(const EngineConfig& config, const WrapExecutor& wrap = {});

}  // namespace warprow
