// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/linear.h"
#include "models/decoder_spec.h"
#include "models/tensor_split.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// A matrix that is a tensor of its own, with the bias of that name.
LinearPart linear_part(
    const std::string& weight, int64_t rows, int64_t cols, const ShardRule& shard, bool bias);

// The parts of a layer's products behind norms, in the order of their outputs: tensors of their own, or rows of a
// fused tensor if the names have one. Values that are keys, and keys and values of another layer, have no part.
std::vector<LinearPart> qkv_parts(const DecoderSpec& spec,
                                  int32_t layer,
                                  const LayerShards& shards);
std::vector<LinearPart> gate_up_parts(const DecoderSpec& spec,
                                      int32_t layer,
                                      const LayerShards& shards);

}  // namespace warprow
