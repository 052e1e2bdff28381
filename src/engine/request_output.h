// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "engine/output_batch.h"
#include "engine/validate.h"
#include "text/detokenizer.h"
#include "text/stop_checker.h"

#include <string>
#include <vector>

namespace warprow {

// One request as the output thread sees it: tokens in, updates for the client out.
//
// Owns: its detokeniser, its stop strings, the client's callback.
// Thread: the output thread's, after construction.
// Invariant: the update with a finish reason is the last one.
class RequestOutput {
 public:
  // The tokenizer must outlive this.
  RequestOutput(RequestId id,
                const RequestFields& fields,
                const Tokenizer& tokenizer,
                UpdateCallback on_update);

  [[nodiscard]] RequestId id() const { return update_.id; }

  // Passes a delta to the client. Returns true if the request ended: by the delta's own reason, or by a stop
  // string, after which the delta's remaining tokens are dropped.
  bool take(const OutputBatch& batch, const OutputDelta& delta);
  // Ends the request from outside; held back text is released.
  void end(FinishReason reason, const std::string& error);

 private:
  void begin_update();
  void take_prompt(const OutputBatch& batch, const OutputDelta& delta);
  void take_vectors(const OutputBatch& batch, const OutputDelta& delta);
  void check_vectors();
  void take_token(const OutputBatch& batch, const OutputDelta& delta, int32_t index);
  void take_text(const std::string& text);
  void finish(const OutputDelta& delta);
  void note_times(const OutputDelta& delta);

  Detokenizer detokenizer_;
  StopChecker stops_;
  int32_t min_tokens_;  // the first outputs, whose text ends no stop string
  bool show_stop_token_;
  bool wants_logprobs_;
  std::vector<TokenId> prompt_;  // only if its logprobs are requested
  VectorForm vector_form_;
  UpdateCallback on_update_;
  RequestUpdate update_;  // reused; id and the running counts stay

  EngineClock::time_point arrived_;
  EngineClock::time_point started_;
  EngineClock::time_point first_token_;
  bool has_output_ = false;
};

}  // namespace warprow
