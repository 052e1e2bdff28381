// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "comm/rank_place.h"
#include "models/decoder_spec.h"
#include "models/model.h"

#include <cstdint>

namespace warprow {

// The stages of a pipeline divide the layers of a model into ranges that follow each other. Layers that are left over
// go to the stages before the last one, one to each, from the back: the last stage also has the head. 16 layers over 2
// stages: 0 to 7 and 8 to 15; 30 over 4: 7, 8, 8 and 7 layers. As vLLM divides them.

// The layers of a stage.
LayerRange stage_layers(int32_t num_layers, const GroupPlace& pipeline);

// Errors: more stages than layers; several stages of a model whose layers share keys and values or have inputs of their
// own.
Result<void> check_stage_split(const DecoderSpec& spec, int32_t num_stages);

}  // namespace warprow
