// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "layers/linear_delta.h"
#include "models/decoder_spec.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// Which linear layers of a layer are sites for deltas.
struct DeltaSites {
  bool qkv = false;
  bool output = false;
  bool feed_forward = false;  // gate and up, and down
};
DeltaSites delta_sites(const LayerSpec& layer);

// A rank's part of a layer's products, by the names that Hugging Face gives their modules, whatever names the checkpoint has.
// Ranks divide them as they divide the weights (tensor_split.h).
LinearSite qkv_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place);
LinearSite output_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place);
LinearSite gate_up_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place);
LinearSite down_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place);

// The modules of a layer's sites.
std::vector<std::string> site_modules(const DecoderSpec& spec, int32_t layer);

}  // namespace warprow
