// SPDX-License-Identifier: Apache-2.0
#include "models/arch/encoder_layers.h"
#include "models/arch/encoders.h"

#include <fmt/format.h>

namespace warprow {

namespace {

// Which layers see all tokens, and which only those near. Newer files list the layers' types.
Result<std::vector<bool>> read_global_layers(const ModelMetadata& metadata, int32_t num_layers) {
  const auto types = metadata.layer_types();
  const auto every = metadata.count_or("global_attn_every_n_layers", "", 3);
  if (!types || !every) {
    return tl::unexpected(!types ? types.error() : every.error());
  }
  std::vector<bool> global;
  for (int32_t i = 0; i < num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    global.push_back(at < types->size() ? (*types)[at] == "full_attention" : i % *every == 0);
  }
  return global;
}

// The rope of one type of layer: rope_parameters of newer files, or the older key of its base.
Result<RopeSpec> read_rope(const ModelMetadata& metadata,
                           const char* type,
                           const char* key,
                           float usual,
                           int32_t head_dim) {
  const auto theta = metadata.float_or(key, "", usual);
  if (!theta) {
    return tl::unexpected(theta.error());
  }
  RopeSpec rope;
  rope.rot_dim = head_dim;
  rope.theta = *theta;
  auto own = metadata.rope_of(type, rope, head_dim);
  if (!own) {
    return tl::unexpected(own.error());
  }
  return own->value_or(rope);
}

}  // namespace

// ModernBERT (Warner et al.): norms in front, a gate, rope; most layers see the tokens near alone.
Result<DecoderSpec> read_modernbert(const ModelMetadata& metadata) {
  const std::string words = "embeddings.tok_embeddings.weight";
  const std::string in = encoder_prefix(metadata, words, {"", "model."});
  auto spec =
      common_encoder_spec(metadata, {.norm_eps = "norm_eps", .usual_norm_eps = 1e-5F}, in + words);
  if (!spec) {
    return spec;
  }
  const auto local = metadata.count_or("local_attention", "", 128);
  const auto attention_bias = metadata.bool_or("attention_bias", false);
  const auto mlp_bias = metadata.bool_or("mlp_bias", false);
  const auto norm_bias = metadata.bool_or("norm_bias", false);
  for (const auto* flag : {&attention_bias, &mlp_bias, &norm_bias}) {
    if (!*flag) {
      return tl::unexpected(flag->error());
    }
  }
  const int32_t head_dim = spec->layers.front().attention.head_dim;
  auto global = read_rope(metadata, "full_attention", "global_rope_theta", 160000.0F, head_dim);
  auto near = read_rope(metadata, "sliding_attention", "local_rope_theta", 10000.0F, head_dim);
  const auto is_global = read_global_layers(metadata, spec->num_layers);
  if (!local || !global || !near || !is_global) {
    return tl::unexpected(!local    ? local.error()
                          : !global ? global.error()
                          : !near   ? near.error()
                                    : is_global.error());
  }
  if (auto read = read_encoder_activation(metadata, "hidden_activation", *spec); !read) {
    return tl::unexpected(read.error());
  }
  spec->ropes = {*std::move(global), *std::move(near)};
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    AttentionSpec& attention = spec->layers[i].attention;
    attention.rope = (*is_global)[i] ? 0 : 1;
    attention.window = (*is_global)[i] ? 0 : *local / 2 + 1;  // a distance of local / 2 is seen
  }
  spec->qkv_bias = spec->o_bias = *attention_bias;
  spec->mlp_bias = *mlp_bias;
  EncoderSpec& encoder = *spec->encoder;
  encoder.norms_behind = false;
  encoder.first_norm = false;
  encoder.norm_biases = *norm_bias;
  encoder.embed_norm = in + "embeddings.norm.weight";
  DecoderWeightNames& names = spec->names;
  const std::string layer = in + "layers.{}.";
  names.q = names.k = names.v = names.qkv = layer + "attn.Wqkv.weight";
  names.o = layer + "attn.Wo.weight";
  names.input_norm = layer + "attn_norm.weight";
  names.gate = names.up = names.gate_up = layer + "mlp.Wi.weight";
  names.down = layer + "mlp.Wo.weight";
  names.ffn_norm = layer + "mlp_norm.weight";
  names.final_norm = in + "final_norm.weight";
  return spec;
}

}  // namespace warprow
