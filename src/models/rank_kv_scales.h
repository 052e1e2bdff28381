// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/view.h"
#include "layers/attention.h"
#include "layers/parameter_loader.h"
#include "models/decoder_spec.h"
#include "models/kv_scales.h"
#include "models/model.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The scales of an 8-bit KV cache of the layers on one rank: of each layer with keys and values of its own, those of the keys
// of its KV heads and then of the values.
//
// Owns: nothing; they lie in the arena of the weights.
class RankKvScales {
 public:
  RankKvScales() = default;  // of another cache
  // of_layers: of the whole model, or empty: there are none. layers: those of this rank's stage.
  RankKvScales(ParameterLoader& loader,
               const DecoderSpec& spec,
               const LayerRange& layers,
               const GroupPlace& ranks,
               const std::vector<LayerKvScales>& of_layers);

  // Constants but for Model::measure_kv_scales.
  [[nodiscard]] View<float, 1> all() const { return scales_; }
  // Gives a layer its own, or those of the layer whose keys it reads.
  void give_to(AttentionLayer& layer) const;

 private:
  int32_t first_layer_ = 0;
  View<float, 1> scales_;
  std::vector<int64_t> begin_;  // by layer of the stage
};

}  // namespace warprow
