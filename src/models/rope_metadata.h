// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/rope_spec.h"

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

namespace warprow {

// What the fields of a rope refer to.
struct RopeContext {
  int32_t head_dim = 0;
  int32_t max_position = 0;
  int32_t original_max_position =
      0;  // beside the rope's own object, which then does not count; 0: not there
};

// Reads theta, scaling and the rotated part from an object of config.json: rope_scaling as published, rope_parameters
// as transformers 5 writes them, or a part of these. `rope` supplies the fields that are not there.
// Errors: a scaling that is not supported (named, with those that are), a value out of range, a list of factors that
// does not have one for each frequency.
Result<RopeSpec> read_json_rope(const nlohmann::json& object,
                                RopeSpec rope,
                                const RopeContext& context);

// Leading dims of a head that a rope of this partial_rotary_factor rotates.
Result<int32_t> rotated_dims(int32_t head_dim, float partial);

// YaRN's factor of cosines and sines for a scaling by `factor`.
float yarn_attention_factor(float factor, float mscale = 1.0F);

}  // namespace warprow
