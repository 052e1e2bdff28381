// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv/kv_math.h"
#include "kv/token_pages.h"

#include <cstdint>

namespace warprow {

// The largest step and the longest row. They size every buffer of a runner.
struct StepLimits {
  int32_t max_num_seqs = 64;
  int32_t max_num_toks = 512;  // of one step
  int32_t max_model_len = 2048;
  int32_t max_steps_in_flight = 2;
  int32_t max_drafts = 0;       // draft tokens of a row in a step (K); 0: no speculation
  TokenPages token_pages = {};  // no pages: as many as all rows can use
  int32_t max_top = 128;        // most likely tokens reported beside a sampled one
  int32_t draft_lookahead = 0;  // draft_overhang's

  // Tokens of a decoding row in a step: the last sampled one and its drafts.
  [[nodiscard]] int32_t decode_len() const { return 1 + max_drafts; }
  [[nodiscard]] int32_t max_logits() const { return max_num_seqs * decode_len(); }
  // Positions that a row's steps may touch.
  [[nodiscard]] int32_t max_row_len() const {
    return max_model_len + draft_overhang(max_steps_in_flight, max_drafts, draft_lookahead);
  }
  [[nodiscard]] TokenPages token_pool() const {
    return token_pages_or_all(token_pages, max_num_seqs, max_row_len());
  }
};

}  // namespace warprow
