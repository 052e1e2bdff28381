// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/metadata.h"

namespace warprow {

// One architecture per function: fills what its family has beyond the common fields, which models/metadata.h reads
// first. One small file each; models/registry.cpp lists them.
Result<void> make_gemma2(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_gemma3(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_gemma4(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_glm(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_glm4(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_glm4_moe(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_gpt_oss(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_granite(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_llama(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_mistral(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_mixtral(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_olmo2(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_phi3(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_qwen2(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_qwen2_moe(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_qwen3_5(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_qwen3_5_moe(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_qwen3_next(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_qwen3(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_qwen3_moe(const ModelMetadata& metadata, DecoderSpec& spec);
Result<void> make_smollm3(const ModelMetadata& metadata, DecoderSpec& spec);

}  // namespace warprow
