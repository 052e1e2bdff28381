// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv/kv_spec.h"

#include <cstdint>

namespace warprow {

// What one layer needs of its attention backend, checked at start. No step exceeds these limits.
struct AttentionNeed {
  int32_t layer = 0;          // for messages
  KvGroupSpec kv;             // shape, dtype, layout and window of its KV group
  bool padded_pages = false;  // another group's layers need larger blocks
  int32_t num_heads = 0;
  bool sinks = false;
  bool soft_cap = false;
  bool output_gate = false;  // rows of Q, K and V have the gates behind them
  bool causal = true;
  bool batch_invariant = false;  // a query's result must not depend on the rest of the batch
  int32_t max_num_rows = 0;      // of a step
  int32_t max_num_toks = 0;
};

}  // namespace warprow
