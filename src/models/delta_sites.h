// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/linear_delta.h"
#include "models/decoder_spec.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The parts of a layer's products by the names that Hugging Face gives their modules, whatever names the checkpoint has.
std::vector<LinearSitePart> qkv_site(const DecoderSpec& spec, int32_t layer);
std::vector<LinearSitePart> output_site(const DecoderSpec& spec, int32_t layer);
std::vector<LinearSitePart> gate_up_site(const DecoderSpec& spec, int32_t layer);
std::vector<LinearSitePart> down_site(const DecoderSpec& spec, int32_t layer);

}  // namespace warprow
