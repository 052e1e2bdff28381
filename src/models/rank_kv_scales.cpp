// SPDX-License-Identifier: Apache-2.0
#include "models/rank_kv_scales.h"

#include "models/tensor_split.h"

#include <utility>

namespace warprow {

RankKvScales::RankKvScales(ParameterLoader& loader,
                           const DecoderSpec& spec,
                           const LayerRange& layers,
                           const GroupPlace& ranks,
                           const std::vector<LayerKvScales>& of_layers)
    : first_layer_(layers.first) {
  if (of_layers.empty()) {
    return;
  }
  std::vector<float> scales;
  for (int32_t i = layers.first; i < layers.last; ++i) {
    begin_.push_back(static_cast<int64_t>(scales.size()));
    const LayerKvScales& layer = of_layers[static_cast<size_t>(i)];
    if (layer.keys.empty()) {
      continue;
    }
    const IndexRange heads = kv_heads(spec.layers[static_cast<size_t>(i)].attention, ranks);
    for (const std::vector<float>* all : {&layer.keys, &layer.values}) {
      scales.insert(
          scales.end(), all->begin() + heads.begin, all->begin() + heads.begin + heads.count);
    }
  }
  const View<const float, 1> loaded = loader.constants(std::move(scales));
  scales_ = make_view(const_cast<float*>(loaded.data), loaded.shape[0]);
}

void RankKvScales::give_to(AttentionLayer& layer) const {
  if (scales_.empty()) {
    return;
  }
  const int64_t first = begin_[static_cast<size_t>(layer.layer - first_layer_)];
  layer.k_scales = make_view(scales_.data + first, int64_t{layer.num_kv_heads});
  layer.v_scales = make_view(layer.k_scales.data + layer.num_kv_heads, int64_t{layer.num_kv_heads});
}

}  // namespace warprow
