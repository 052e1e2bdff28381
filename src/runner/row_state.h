// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <type_traits>

namespace warprow {

// The device's state of a row. Staged whole at admission; from then on only post_update writes it, so a step never
// needs a value that the host would have to wait for.
struct RowState {
  int32_t prompt_len = 0;           // of the request as sent
  int32_t prefill_len = 0;          // known tokens at admission
  int32_t total_len = 0;            // known tokens now: prefill and sampled
  int32_t num_computed_tokens = 0;  // tokens whose KV is in the cache
  TokenId last_sampled = 0;
  uint32_t generation = 0;  // of the request in the row
  int32_t reserved[2] = {};
};
static_assert(sizeof(RowState) == 32);
static_assert(std::is_trivially_copyable_v<RowState>);

}  // namespace warprow
