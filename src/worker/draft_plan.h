// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/speculation.h"
#include "models/decoder.h"
#include "models/decoder_spec.h"
#include "runner/features/model_drafts.h"
#include "weights/checkpoint.h"

#include <memory>

namespace warprow {

struct ModelPlan;

// A model that drafts for another one on the same rank, as planned: nothing loaded.
struct DraftPlan {
  std::unique_ptr<Checkpoint> checkpoint;
  DecoderSpec spec;
  DecoderOptions decoder;
  DraftModel model;  // without the model itself
};

// The draft model that the settings name; null if they name none. Reads headers only. Places in the cache are
// decided later. plan: its place, settings and model.
//
// Errors: a model that cannot be found, read or supported; another vocabulary; several ranks.
Result<std::unique_ptr<DraftPlan>> read_draft_plan(const ModelPlan& plan);

// Decides the rest, once the plan of the whole cache and the options of the drafted model are known.
void finish_draft_plan(DraftPlan& draft, const ModelPlan& plan);

}  // namespace warprow
