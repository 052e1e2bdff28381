// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/philox.h"
#include "kernels/sample/cpu/sample_loops.h"
#include "kernels/sample/cpu/top_k_top_p.h"
#include "kernels/sample/sample_params.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// The draw of a random row, in steps: the division by the temperature, the cut, and a token of what is left. The sampler
// and the drafts of a drafter share them.

// One worker's part of the sampler's scratch (sample_scratch_bytes).
struct WorkerScratch {
  TokenKey* keys;   // [vocab]
  int32_t* counts;  // [vocab]  in the memory of the keys: their last use is before the first key
  float* values;    // [vocab]
  float* changed;   // [vocab]  changed logits
  float* group_max;
  float* group_copy;
};
WorkerScratch worker_scratch(std::byte* scratch, int64_t vocab, int32_t worker);

SampleLoops pick_sample_loops();

// A row of n logits that were scanned with scratch.group_max.
TokenRow row_of(const float* logits,
                int32_t n,
                const RowFacts& facts,
                const SampleLoops& loops,
                const WorkerScratch& scratch);

// Divides the row by the temperature, into scratch.changed, and the group maxima too, since division keeps the order.
void apply_temperature(TokenRow& row, float temperature, const WorkerScratch& scratch);

// The tokens of a divided row that survive min_p, top_k and top_p. The most likely token always survives, too: division may
// have made a token with a lower id equal to it.
struct Survivors {
  Cut cut;
  int32_t count;  // if count <= kShortList, row.keys[0, count) contains them, among others
  TokenKey last;
};
Survivors cut_row(const TokenRow& row, const SampleParams& params);

// The survivor with the largest score. argmax: the most likely token.
int32_t draw_survivor(const TokenRow& row,
                      const Survivors& left,
                      int32_t argmax,
                      const RandomKey& key);

// Writes the survivors' e^(x - max) to mass [row.n], 0 for other tokens. Returns the sum.
double masses_of(const TokenRow& row, const Cut& cut, int32_t argmax, float* mass);

}  // namespace warprow::cpu
