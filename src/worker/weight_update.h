// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "weights/checkpoint.h"
#include "worker/model_plan.h"

#include <memory>
#include <string>

namespace warprow {

// Another checkpoint of the planned model, whose weights fit into the places of the loaded ones: the same description and
// the same tensors, each of the same type and shape. Reads headers only. model: as in the settings. Errors:
// kInvalidArgument for another model, with what differs first; those of resolve_model and Checkpoint::open.
Result<std::unique_ptr<Checkpoint>> open_same_model(const ModelPlan& plan,
                                                    const std::string& model);

}  // namespace warprow
