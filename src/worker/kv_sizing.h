// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "worker/model_plan.h"
#include "worker/rank_terms.h"

#include <cstdint>
#include <functional>

namespace warprow {

// How large the KV cache of a plan is, and the longest request with it.

// The cache of the stage with the most layers in a block. All stages have as many blocks as that one can hold, and so
// the same limits from the start. It has no blocks.
KvCacheSpec largest_cache(const ModelPlan& plan);

// Sizes the cache by the plan's settings and what everything else takes: `measure` fills the plan's planned bytes
// for the length in plan.runner.max_model_len. user_len: requested by the user; 0: none.
// Errors: kOutOfMemory, with the numbers.
Result<void> size_memory(ModelPlan& plan,
                         int32_t user_len,
                         const std::function<void(ModelPlan&)>& measure);
Result<void> check_fit(const ModelPlan& plan);

// Writes the cache's size, and the longest request, into the memory plan.
void describe_kv_cache(ModelPlan& plan);

// How much of the planned cache this rank can hold now that foreign memory was measured: all of it, or less if
// foreign memory exceeded the estimate.
RankTerms offer(const ModelPlan& plan);
// Gives the plan the agreed cache. Arenas are built by now, so the longest request may become shorter but not
// longer. Errors: kOutOfMemory if a length that the user requested no longer fits.
Result<void> take_terms(ModelPlan& plan, const RankTerms& terms);

}  // namespace warprow
