// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/speculation.h"
#include "models/decoder.h"
#include "models/decoder_spec.h"
#include "models/eagle_spec.h"
#include "runner/features/model_drafts.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace warprow {

struct ModelPlan;

// A model, or a head, that drafts for another model on the same rank, as planned: nothing loaded.
struct DraftPlan {
  std::unique_ptr<Checkpoint> checkpoint;  // null: the model's own
  DecoderSpec spec;                        // of a head its layers
  std::optional<EagleSpec> head;
  std::vector<int32_t> head_ids;  // read_draft_ids
  DecoderOptions decoder;
  DraftModel model;  // without the model or head itself

  // The ranks that divide its own tensors, of those that divide the model's.
  [[nodiscard]] GroupPlace place(const GroupPlace& model_ranks) const {
    return model.divided ? model_ranks : GroupPlace();
  }
};

// The draft model or head that the settings ask for; null if they ask for none. Reads headers only, and of a head its list of
// ids. Places in the cache are decided later. plan: its place, settings and model.
//
// Errors: a model that cannot be found, read or supported; another vocabulary; several stages; ranks that cannot divide it; a
// model without the layer that drafts.
Result<std::unique_ptr<DraftPlan>> read_draft_plan(const ModelPlan& plan);

// Decides the rest, once the plan of the whole cache and the options of the drafted model are known.
void finish_draft_plan(DraftPlan& draft, const ModelPlan& plan);

}  // namespace warprow
