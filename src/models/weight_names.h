// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/decoder_spec.h"

#include <string>

namespace warprow {

// Tensor names as transformers writes them ("model.layers.{}.self_attn.q_proj.weight"). prefix: of all but the head's.
DecoderWeightNames hf_weight_names(const std::string& prefix = "model.");
// Tensor names as GGUF has them ("blk.{}.attn_q.weight").
DecoderWeightNames gguf_weight_names();

// A pattern with {} replaced by the layer's number. One without {} is the name in the only layer.
std::string layer_name(const std::string& pattern, int32_t layer);
// The same with a second {} for the expert's number. In a pattern with one {} that is the expert's.
std::string expert_name(const std::string& pattern, int32_t layer, int32_t expert);
// Replaces the first characters `from` of the names of a layer's attention and feed-forward by `to`.
void move_layer(DecoderWeightNames& names, const std::string& from, const std::string& to);
// The bias that goes with a weight: "...q_proj.weight" -> "...q_proj.bias".
std::string bias_name(const std::string& weight_name);

}  // namespace warprow
