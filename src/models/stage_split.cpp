// SPDX-License-Identifier: Apache-2.0
#include "models/stage_split.h"

#include <algorithm>

#include <fmt/format.h>

namespace warprow {
namespace {

int32_t num_layers_of(int32_t num_layers, int32_t stage, int32_t num_stages) {
  const int32_t left_over = num_layers % num_stages;
  const bool has_more = stage < num_stages - 1 && stage >= num_stages - 1 - left_over;
  return num_layers / num_stages + (has_more ? 1 : 0);
}

}  // namespace

LayerRange stage_layers(int32_t num_layers, const GroupPlace& pipeline) {
  LayerRange mine;
  for (int32_t stage = 0; stage <= pipeline.rank; ++stage) {
    mine.first = mine.last;
    mine.last += num_layers_of(num_layers, stage, pipeline.size);
  }
  return mine;
}

Result<void> check_stage_split(const DecoderSpec& spec, int32_t num_stages) {
  const int32_t num_layers = spec.num_layers;
  const bool reach_back = std::ranges::any_of(spec.layers, [](const LayerSpec& layer) {
    return !layer.attention.has_own_kv() || layer.layer_input_size > 0;
  });
  if (num_stages > 1 && reach_back) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("pipeline-parallel-size {}: the layers of this model share keys and "
                            "values or have inputs of their own, and are not divided into stages",
                            num_stages));
  }
  if (num_stages > num_layers) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("pipeline-parallel-size {} is more than the model's {} layers",
                            num_stages,
                            num_layers));
  }
  return {};
}

}  // namespace warprow
