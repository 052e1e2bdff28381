// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv/kv_planner.h"
#include "runner/features/feature.h"

#include <cstdint>
#include <memory>

namespace warprow {

class EagleHead;

// A smaller model, or a head, that drafts for the runner's model. The worker owns them.
struct DraftModel {
  Model* model = nullptr;
  EagleHead* head = nullptr;  // in place of it
  KvPlan kv;                  // all groups of the cache, and the places of the drafter's layers
  int32_t first_layer = 0;    // where they begin in the cache's list
  bool batch_invariant = false;
  bool divided = true;  // over the model's ranks; else every rank has all of it
};

// The most tokens of one of its own forwards.
[[nodiscard]] int32_t most_draft_model_toks(int32_t max_num_seqs);

// A proposer: the most likely tokens of a smaller model, one forward for each. Its keys and values are in groups of the
// same pool, under the same block tables and prefix hashes.
//
// A step with prompt tokens is also a step of the draft model. After any other one the draft model has computed all
// tokens of a row but the last two, or all but the last: it had computed the drafts that were accepted. So the first of
// its forwards takes two tokens of each row.
std::unique_ptr<RunnerFeature> make_model_drafts(const RunnerParts& parts, const DraftModel& draft);

}  // namespace warprow
