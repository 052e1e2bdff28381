// SPDX-License-Identifier: Apache-2.0
#include "models/arch/encoder_layers.h"
#include "models/arch/encoders.h"

#include <fmt/format.h>

namespace warprow {

namespace {

// A key of config.json that must be as the models that are supported have it.
struct FixedFlag {
  const char* key;
  bool value;
};
constexpr FixedFlag kFixed[] = {{"prenorm", false},
                                {"causal", false},
                                {"parallel_block", false},
                                {"use_rms_norm", false},
                                {"qkv_proj_bias", false},
                                {"mlp_fc1_bias", false},
                                {"mlp_fc2_bias", false}};

Result<void> check_nomic(const ModelMetadata& metadata) {
  for (const FixedFlag& flag : kFixed) {
    const auto value = metadata.bool_or(flag.key, flag.value);
    if (!value) {
      return tl::unexpected(value.error());
    }
    if (*value != flag.value) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("config.json: {} {} is not supported", flag.key, *value));
    }
  }
  const auto activation = metadata.string_or("activation_function", "", "swiglu");
  if (!activation || *activation != "swiglu") {
    return activation ? fail(ErrorCode::kUnsupported,
                             fmt::format("config.json: activation_function {} is not supported "
                                         "(swiglu is)",
                                         *activation))
                      : tl::unexpected(activation.error());
  }
  for (const char* key : {"rotary_emb_scale_base", "rotary_scaling_factor", "num_experts"}) {
    if (metadata.has_json(key)) {
      return fail(ErrorCode::kUnsupported, fmt::format("config.json: {} is not supported", key));
    }
  }
  return {};
}

}  // namespace

// nomic-bert as nomic-embed-text has it: BERT with rope and a gate.
Result<DecoderSpec> read_nomic_bert(const ModelMetadata& metadata) {
  if (auto checked = check_nomic(metadata); !checked) {
    return tl::unexpected(checked.error());
  }
  const std::string words = "embeddings.word_embeddings.weight";
  const std::string in = encoder_prefix(metadata, words, {"", "bert."});
  auto spec = common_encoder_spec(metadata,
                                  {.num_layers = "n_layer",
                                   .hidden_size = "n_embd",
                                   .num_heads = "n_head",
                                   .intermediate_size = "n_inner",
                                   .max_position = "n_positions",
                                   .norm_eps = "layer_norm_epsilon"},
                                  in + words);
  if (!spec) {
    return spec;
  }
  const auto base = metadata.float_or("rotary_emb_base", "", 1000.0F);
  const auto fraction = metadata.float_or("rotary_emb_fraction", "", 0.0F);
  const auto interleaved = metadata.bool_or("rotary_emb_interleaved", false);
  const auto segments = metadata.number_or("type_vocab_size", "", 2);
  if (!base || !fraction || !interleaved || !segments) {
    return tl::unexpected(!base          ? base.error()
                          : !fraction    ? fraction.error()
                          : !interleaved ? interleaved.error()
                                         : segments.error());
  }
  RopeSpec rope;
  rope.theta = *base;
  rope.interleaved = *interleaved;
  const auto rotated = rotated_dims(spec->layers.front().attention.head_dim, *fraction);
  if (!rotated) {
    return tl::unexpected(rotated.error());
  }
  rope.rot_dim = *rotated;
  spec->ropes = {rope};
  for (LayerSpec& layer : spec->layers) {
    layer.attention.rope = 0;
    layer.ffn.activation = Activation::kSilu;
  }
  EncoderSpec& encoder = *spec->encoder;
  encoder.num_segments = *segments;
  encoder.segments = in + "embeddings.token_type_embeddings.weight";
  encoder.embed_norm = in + "emb_ln.weight";
  DecoderWeightNames& names = spec->names;
  const std::string layer = in + "encoder.layers.{}.";
  names.q = names.k = names.v = names.qkv = layer + "attn.Wqkv.weight";
  names.o = layer + "attn.out_proj.weight";
  names.input_norm = layer + "norm1.weight";
  names.up = layer + "mlp.fc11.weight";
  names.gate = layer + "mlp.fc12.weight";
  names.down = layer + "mlp.fc2.weight";
  names.ffn_norm = layer + "norm2.weight";
  return spec;
}

}  // namespace warprow
