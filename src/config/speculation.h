// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"

#include <cstdint>

namespace warprow {

// The most draft tokens that a row may have in a step.
inline constexpr int32_t kMaxDrafts = 16;

// How drafts are made, read from --speculative-config or --spec-method. Keys and defaults are vLLM's.
struct Speculation {
  enum class Method : uint8_t {
    kNone,
    kNgram,  // the tokens that followed an earlier occurrence of the row's last tokens
  };

  Method method = Method::kNone;
  int32_t num_drafts = 0;  // num_speculative_tokens: of a row in a step, at most
  // Tokens that an earlier occurrence must have in common with the row's end; 1 <= min <= max.
  int32_t prompt_lookup_min = 0;
  int32_t prompt_lookup_max = 0;
  bool adaptive = true;  // fewer drafts, or none, where they do not pay; not a key of vLLM's

  [[nodiscard]] bool is_on() const { return method != Method::kNone; }
};

// The settings' speculation; kNone if no setting asks for one. An error names the setting, the key, its value and what
// is allowed.
Result<Speculation> read_speculation(const EngineConfig& settings);

}  // namespace warprow
