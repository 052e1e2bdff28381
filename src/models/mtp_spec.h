// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/eagle_spec.h"
#include "weights/checkpoint.h"

namespace warprow {

// Reads the layer that predicts further tokens of a model from that model's own checkpoint. Its embedding and head are the
// model's: files that repeat them (embed_tokens and shared_head.head of DeepSeek's layout) hold the same values, as its report
// says. Reads no weights.
//
// DeepSeek's layout (GLM-4-MoE; arXiv 2412.19437, section 2.2): layers.{num_hidden_layers} has enorm, hnorm, eh_proj and
// shared_head.norm beside the tensors of a layer. The embedding at position 0 is zeros; behind a draft, h is the stream.
// Qwen's layout (Qwen3-Next, Qwen3.5): mtp.fc, mtp.pre_fc_norm_embedding, mtp.pre_fc_norm_hidden, mtp.norm and mtp.layers.0, a
// layer of full attention. Behind a draft, h is norm(stream).
//
// Errors: a family without such a layer, GGUF, several such layers, tensors that are missing; they are named.
Result<EagleSpec> read_mtp_spec(const Checkpoint& checkpoint, const DecoderSpec& target);

}  // namespace warprow
