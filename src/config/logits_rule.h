// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// A row of logits before its next token is drawn.
struct RowLogits {
  std::span<const TokenId> tokens;  // of the request so far: the prompt, then the outputs
  int32_t prompt_len = 0;           // 1 .. tokens.size()
  std::span<float> logits;          // one for each token of the vocabulary; may be written
};

// A rule on logits that the owner of an engine adds to it, for all of its requests. It runs on the host, on the CPU
// alone. It comes after a grammar's mask and before all else: raw logprobs, other rules, the draw.
//
// Thread: apply is called on the thread of a rank's stream, one row at a time.
class LogitsRule {
 public:
  virtual ~LogitsRule() = default;

  // Whether it can change which logit is the largest. A rule that cannot is skipped for greedy rows, and a batch of such
  // rows costs nothing.
  [[nodiscard]] virtual bool changes_argmax() const = 0;
  // Changes the logits. A logit that was -inf stays -inf, whatever the rule writes. The result may depend on the row
  // alone, else a request's answer depends on the batch. Warm-up calls it too, with tokens of its own. false: the
  // request fails. Must not throw, nor wait for the engine.
  virtual bool apply(const RowLogits& row) = 0;
};

// In the order in which they apply. Each outlives the engine.
using LogitsRules = std::vector<LogitsRule*>;

}  // namespace warprow
