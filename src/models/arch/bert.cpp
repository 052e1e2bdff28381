// SPDX-License-Identifier: Apache-2.0
#include "models/arch/encoder_layers.h"
#include "models/arch/encoders.h"

#include <fmt/format.h>

namespace warprow {

namespace {

// What later models turn on in BERT's configuration.
Result<void> check_bert(const ModelMetadata& metadata) {
  const auto positions = metadata.string_or("position_embedding_type", "", "absolute");
  const auto decodes = metadata.bool_or("is_decoder", false);
  if (!positions || !decodes) {
    return tl::unexpected(!positions ? positions.error() : decodes.error());
  }
  if (*positions != "absolute") {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("config.json: position_embedding_type {} is not supported (absolute is)",
                    *positions));
  }
  if (*decodes) {
    return fail(ErrorCode::kUnsupported, "config.json: is_decoder true is not supported");
  }
  return {};
}

Result<DecoderSpec> read_bert_like(const ModelMetadata& metadata, const char* prefix) {
  if (auto checked = check_bert(metadata); !checked) {
    return tl::unexpected(checked.error());
  }
  const std::string words = "embeddings.word_embeddings.weight";
  const std::string in = encoder_prefix(metadata, words, {"", prefix});
  auto spec = common_encoder_spec(metadata, {}, in + words);
  if (!spec) {
    return spec;
  }
  const auto segments = metadata.count_or("type_vocab_size", "", 2);
  if (!segments) {
    return tl::unexpected(segments.error());
  }
  if (auto read = read_encoder_activation(metadata, "hidden_act", *spec); !read) {
    return tl::unexpected(read.error());
  }
  for (LayerSpec& layer : spec->layers) {
    layer.ffn.gated = false;
  }
  spec->qkv_bias = spec->o_bias = spec->mlp_bias = true;
  EncoderSpec& encoder = *spec->encoder;
  encoder.num_positions = spec->max_position;
  encoder.num_segments = *segments;
  encoder.positions = in + "embeddings.position_embeddings.weight";
  encoder.segments = in + "embeddings.token_type_embeddings.weight";
  encoder.embed_norm = in + "embeddings.LayerNorm.weight";
  DecoderWeightNames& names = spec->names;
  const std::string layer = in + "encoder.layer.{}.";
  names.q = layer + "attention.self.query.weight";
  names.k = layer + "attention.self.key.weight";
  names.v = layer + "attention.self.value.weight";
  names.o = layer + "attention.output.dense.weight";
  names.input_norm = layer + "attention.output.LayerNorm.weight";
  names.up = layer + "intermediate.dense.weight";
  names.down = layer + "output.dense.weight";
  names.ffn_norm = layer + "output.LayerNorm.weight";
  return spec;
}

}  // namespace

// BERT (Devlin et al.).
Result<DecoderSpec> read_bert(const ModelMetadata& metadata) {
  return read_bert_like(metadata, "bert.");
}

// RoBERTa (Liu et al.) and XLM-RoBERTa: BERT whose positions begin behind that of padding.
Result<DecoderSpec> read_roberta(const ModelMetadata& metadata) {
  auto spec = read_bert_like(metadata, "roberta.");
  const auto pad = metadata.number_or("pad_token_id", "", 1);
  if (!spec || !pad) {
    return spec ? tl::unexpected(pad.error()) : spec;
  }
  if (*pad >= spec->max_position - 1) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("config.json: max_position_embeddings {} leaves no position behind that "
                    "of padding, {}",
                    spec->max_position,
                    *pad));
  }
  spec->encoder->first_position = *pad + 1;
  spec->max_position -= *pad + 1;
  return spec;
}

}  // namespace warprow
