// SPDX-License-Identifier: Apache-2.0
#include "models/tensor_split.h"

#include "base/math.h"
#include "kernels/linear/linear.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

// Parts of a vocabulary are multiples of this: a panel of weights, and 64 bytes of logits.
constexpr int32_t kVocabUnit = 16;

// How many ranks have a copy of each key-value head.
int32_t kv_copies(const AttentionSpec& attention, const GroupPlace& place) {
  return std::max(1, place.size / attention.num_kv_heads);
}

ShardRule cut(ShardRule::Axis axis, const GroupPlace& place, int64_t unit) {
  return {axis, place.rank, place.size, unit};
}

// The rows of an expert's matrices are multiples of this, on every rank: whole panels on a CPU.
constexpr int32_t expert_unit(DeviceKind device) { return device == DeviceKind::kCuda ? 8 : 16; }

// What CPUs alone compute.
std::string unmet_on_cuda(const LayerSpec& layer) {
  constexpr int32_t kMostGroups = 32;
  if (layer.ffn.has_experts() && layer.ffn.num_groups > kMostGroups) {
    return fmt::format(
        "{} groups of experts; CUDA has kernels for at most {}", layer.ffn.num_groups, kMostGroups);
  }
  return {};
}

std::string unmet_by_experts(const FfnSpec& ffn,
                             int32_t hidden_size,
                             int32_t num_ranks,
                             DeviceKind device) {
  const int32_t unit = expert_unit(device);
  if (hidden_size % unit != 0) {
    return fmt::format(
        "hidden_size {} of a model with experts is no multiple of {}", hidden_size, unit);
  }
  if (ffn.intermediate_size % (num_ranks * unit) != 0) {
    return fmt::format(
        "the intermediate size {} of experts is no multiple of tensor-parallel-size {} times {}",
        ffn.intermediate_size,
        num_ranks,
        unit);
  }
  const int32_t input_unit = linear_input_unit(device);
  if (num_ranks > 1 && ffn.shared_size % (num_ranks * input_unit) != 0) {
    return fmt::format(
        "the intermediate size {} of the shared expert is no multiple of tensor-parallel-size {} "
        "times {}",
        ffn.shared_size,
        num_ranks,
        input_unit);
  }
  return {};
}

// Why ranks cannot divide what stands before the feed-forward; empty if they can.
std::string unmet_by_mixer(const LayerSpec& layer, int32_t num_ranks, DeviceKind device) {
  if (layer.has_state()) {
    if (device == DeviceKind::kCuda && !fits_cuda(layer.delta)) {
      return fmt::format(
          "a gated delta net with linear_key_head_dim {}, linear_value_head_dim {} and "
          "linear_conv_kernel_dim {} is not supported on CUDA (multiples of {} up to {}; 2 to {})",
          layer.delta.key_dim,
          layer.delta.value_dim,
          layer.delta.conv_len,
          kCudaDeltaUnit,
          kMaxCudaDeltaDim,
          kMaxCudaConvLen);
    }
    if (layer.delta.tiled && num_ranks > 1) {
      return "value heads of a gated delta net in the order of a GGUF file cannot be divided among "
             "ranks";
    }
    if (layer.delta.num_key_heads % num_ranks != 0) {
      return fmt::format("linear_num_key_heads {} is no multiple of tensor-parallel-size {}",
                         layer.delta.num_key_heads,
                         num_ranks);
    }
    return {};
  }
  const AttentionSpec& attention = layer.attention;
  if (attention.num_heads % num_ranks != 0) {
    return fmt::format("num_attention_heads {} is no multiple of tensor-parallel-size {}",
                       attention.num_heads,
                       num_ranks);
  }
  if (attention.num_kv_heads % num_ranks != 0 && num_ranks % attention.num_kv_heads != 0) {
    return fmt::format(
        "num_key_value_heads {} is neither a multiple nor a divisor of tensor-parallel-size {}",
        attention.num_kv_heads,
        num_ranks);
  }
  if (num_ranks > 1 && attention.wide_qk_norm) {
    return "norms over all heads cannot be divided among ranks";
  }
  return {};
}

// Why ranks cannot divide the layer; empty if they can.
std::string unmet(const LayerSpec& layer,
                  int32_t hidden_size,
                  int32_t num_ranks,
                  DeviceKind device) {
  if (std::string why = device == DeviceKind::kCuda ? unmet_on_cuda(layer) : std::string();
      !why.empty()) {
    return why;
  }
  if (std::string why = unmet_by_mixer(layer, num_ranks, device); !why.empty()) {
    return why;
  }
  if (layer.ffn.has_experts()) {
    return unmet_by_experts(layer.ffn, hidden_size, num_ranks, device);
  }
  const int32_t input_unit = linear_input_unit(device);
  if (num_ranks > 1 && layer.ffn.intermediate_size % (num_ranks * input_unit) != 0) {
    return fmt::format("intermediate_size {} is no multiple of tensor-parallel-size {} times {}",
                       layer.ffn.intermediate_size,
                       num_ranks,
                       input_unit);
  }
  return {};
}

}  // namespace

IndexRange query_heads(const AttentionSpec& attention, const GroupPlace& place) {
  const int64_t count = attention.num_heads / place.size;
  return {place.rank * count, count};
}

IndexRange kv_heads(const AttentionSpec& attention, const GroupPlace& place) {
  const int32_t copies = kv_copies(attention, place);
  const int64_t count = attention.num_kv_heads * copies / place.size;
  return {place.rank / copies * count, count};
}

IndexRange delta_key_heads(const DeltaSpec& delta, const GroupPlace& place) {
  const int64_t count = delta.num_key_heads / place.size;
  return {place.rank * count, count};
}

VocabPart vocab_part(int32_t vocab_size, const GroupPlace& place) {
  if (place.size == 1) {
    return {0, vocab_size, vocab_size};
  }
  const int32_t width = round_up(ceil_div(vocab_size, place.size), kVocabUnit);
  const int64_t first = std::min<int64_t>(int64_t{place.rank} * width, vocab_size);
  const int64_t count = std::min<int64_t>(width, vocab_size - first);
  return {static_cast<int32_t>(first), static_cast<int32_t>(count), width};
}

Result<void> check_tensor_split(const DecoderSpec& spec, int32_t num_ranks, DeviceKind device) {
  if (spec.encoder && num_ranks > 1) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("--tensor-parallel-size: {} with an encoder is not supported", num_ranks));
  }
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const std::string why = unmet(spec.layers[l], spec.hidden_size, num_ranks, device);
    if (!why.empty()) {
      return fail(ErrorCode::kUnsupported, fmt::format("layer {}: {}", l, why));
    }
  }
  return {};
}

LayerSpec rank_layer(const LayerSpec& layer, const GroupPlace& place) {
  LayerSpec mine = layer;
  mine.attention.num_heads = static_cast<int32_t>(query_heads(layer.attention, place).count);
  mine.attention.num_kv_heads = static_cast<int32_t>(kv_heads(layer.attention, place).count);
  mine.delta.num_key_heads /= place.size;
  mine.delta.num_value_heads /= place.size;
  mine.ffn.intermediate_size /= place.size;
  mine.ffn.shared_size /= place.size;
  return mine;
}

DecoderSpec rank_spec(const DecoderSpec& spec, const GroupPlace& place) {
  DecoderSpec mine = spec;
  for (LayerSpec& layer : mine.layers) {
    layer = rank_layer(layer, place);
  }
  return mine;
}

LayerShards layer_shards(const LayerSpec& layer, const GroupPlace& place) {
  using Axis = ShardRule::Axis;
  const AttentionSpec& attention = layer.attention;
  const int32_t copies = kv_copies(attention, place);
  const GroupPlace kv{place.rank / copies, place.size / copies};
  return {cut(Axis::kRows, place, attention.head_dim),
          cut(Axis::kRows, kv, attention.head_dim),
          cut(Axis::kCols, place, attention.head_dim_v),
          cut(Axis::kCols, place, 1),
          cut(Axis::kCols, place, std::max(1, layer.delta.value_dim)),
          cut(Axis::kRows, place, 1),
          cut(Axis::kCols, place, 1)};
}

}  // namespace warprow
