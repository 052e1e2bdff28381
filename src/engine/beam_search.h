// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/beams.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/validate.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace warprow {

// What a request needs beside its prompt and its sampling options.
struct BeamOptions {
  int64_t width = 1;  // 1 .. max_beam_width
  double length_penalty = 1.0;
};

// The widest search. Twice as many tokens are considered after each sequence, so that enough remain if half of them end;
// a row reports at most ModelFacts::max_logprobs.
[[nodiscard]] int64_t max_beam_width(const ModelFacts& facts);

// A beam search that runs on an engine. Each token of each sequence is a request of its own; the prefix cache has
// what they share, and all but the last block of each sequence.
//
// Owns: the sequences. Lives until the last of its requests has ended.
// Thread: make, start and abort from any; on_choice is called on the engine's output thread.
// Invariant: each choice gets exactly one update, which has a finish reason; also at the engine's shutdown.
class BeamSearch : public std::enable_shared_from_this<BeamSearch> {
 public:
  // Gets the sequences, best first: choice 0 to width - 1. The update has the output's tokens, text and logprobs; its
  // id is 0. If one of the requests fails, each choice gets its finish reason and error, and no tokens. Must not
  // block, nor call the search.
  using OnChoice = std::function<void(size_t choice, const RequestUpdate& update)>;

  // The request's max_tokens, temperature, ignore_eos, skip_special_tokens, priority and cache_salt count; `logprobs`
  // is ignored, because updates have them anyway. Refuses other sampling options that are set. The temperature changes
  // logprobs only in the engine's processed modes. The engine must outlive all updates.
  static Result<std::shared_ptr<BeamSearch>> make(Engine& engine,
                                                  const GenerationRequest& request,
                                                  const BeamOptions& options);

  // Call it once.
  void start(OnChoice on_choice);
  // Ends the search soon: each choice gets kAbort. A search that does not run is left as it is.
  void abort();

  [[nodiscard]] const std::vector<TokenId>& prompt_token_ids() const { return prompt_; }

 private:
  BeamSearch(Engine& engine,
             GenerationRequest request,
             ValidRequest first,
             const BeamLimits& limits);

  void submit(std::vector<ValidRequest> requests);
  void take(size_t index, const RequestUpdate& update);
  void end_step();
  void abort_requests();
  void give_all(const RequestUpdate& end);
  void give_best();
  [[nodiscard]] RequestUpdate update_of(Beam beam) const;

  Engine& engine_;
  GenerationRequest request_;  // of one token; its prompt is not read
  size_t width_;
  std::vector<TokenId> prompt_;

  std::mutex mutex_;  // guards all below
  OnChoice on_choice_;
  std::optional<ValidRequest> first_;  // until start
  Beams beams_;
  RequestUpdate first_update_;  // the first request's last one, for counts and times
  std::chrono::steady_clock::time_point first_token_;
  std::vector<RequestId> ids_;                        // the step's requests, in the order of live()
  std::vector<std::vector<TokenLogprob>> likeliest_;  // of each
  size_t num_running_ = 0;
  std::optional<RequestUpdate> failed_;  // the first update that ends the search early
};

}  // namespace warprow
