// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/simulate/cost_table.h"

#include <vector>

namespace warprow {

struct NamedCosts {
  const char* name;
  CostTable table;
};

// Tables of one NVIDIA H200, bf16, from the figures of docs/performance.md ("One GPU", 2026-11-22).
//
// decode_us: the rows "decode" less their context of 256; decode_context_ns: from batch 32 at contexts of 256 and 2,112
// (the row "context 2048" begins at 2,048 and decodes 128), for all batches. prefill_us: decode_us up to 512, the first
// token of a prompt of 1,024, and a step of 8,192 tokens at the row "prefill". Attention within prompts of 1,024 is in these two, so
// prefill_pair_ns is 0: first tokens of much longer prompts come out too early.
std::vector<NamedCosts> h200_costs();

}  // namespace warprow
