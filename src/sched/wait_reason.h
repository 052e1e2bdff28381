// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace warprow {

// Why the first waiting request got no row in a step. Those behind it wait for it.
enum class WaitReason : uint8_t {
  kNone,        // no request waits
  kRows,        // max_num_seqs requests run
  kTokens,      // the step's tokens went to others: max_num_batched_tokens
  kRation,      // its prompt tokens beside decoding rows are used up: max_mixed_prefill
  kBlocks,      // too few free KV blocks, or pages for its tokens
  kAdapter,     // max_loras other adapters run
  kPreemption,  // the step preempted a request, for want of blocks
  kOutputs,     // it was preempted with outputs in flight, which its prefill needs
};

[[nodiscard]] constexpr std::string_view wait_reason_name(WaitReason reason) {
  constexpr std::string_view kNames[] = {
      "none", "rows", "tokens", "ration", "blocks", "adapter", "preemption", "outputs"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace warprow
