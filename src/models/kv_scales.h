// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "weights/checkpoint.h"

#include <vector>

namespace warprow {

// The scales of a layer's cached keys and values in an 8-bit KV cache, one for each of its KV heads: a cached number
// times its scale is the key's or value's element. Empty for a layer without keys and values of its own.
struct LayerKvScales {
  std::vector<float> keys;
  std::vector<float> values;
  bool in_checkpoint = false;  // else they are 1
};

// By layer, from the tensors that calibration tools write beside a layer's projections: k_scale and v_scale of the
// attention module or of its k_proj and v_proj, their output_scale, or one kv_scale for both. They hold one number, or
// one for each KV head. A layer with one of the two uses it for both.
//
// Errors: a quantization_config whose kv_cache_scheme or kv_cache_quant_algo has other scales than those of 8-bit floats;
// a tensor of another size or type; a scale that is not a positive finite number.
Result<std::vector<LayerKvScales>> read_kv_scales(const Checkpoint& checkpoint,
                                                  const DecoderSpec& spec);

}  // namespace warprow
