// SPDX-License-Identifier: Apache-2.0
#include "models/layer_needs.h"

#include "base/check.h"

#include <utility>

namespace warprow {
namespace {

int32_t least_of(std::span<const int32_t> sizes, int32_t head_dim) {
  int32_t least = 0;
  for (const int32_t size : sizes) {
    if (size >= head_dim && (least == 0 || size < least)) {
      least = size;
    }
  }
  return least == 0 ? head_dim : least;
}

}  // namespace

std::vector<KvNeed> kv_needs(const DecoderSpec& spec,
                             const KvOptions& options,
                             std::span<const std::string> backends) {
  WR_CHECK(backends.empty() || backends.size() == spec.layers.size());
  std::vector<KvNeed> needs(spec.layers.size());
  for (size_t l = 0; l < needs.size(); ++l) {
    KvNeed& need = needs[l];
    if (spec.layers[l].has_state()) {
      need.kind = KvKind::kState;
      need.state_bytes = spec.layers[l].delta.state_floats() * static_cast<int64_t>(sizeof(float));
      need.dtype = DType::kF32;
      need.block_size = need.kernel_block_size = options.block_size;
      need.backend = "state_pages";
      continue;
    }
    const AttentionSpec& layer = spec.layers[l].attention;
    const bool has_window = layer.window > 0 && layer.causal;
    need.kind = has_window ? KvKind::kSlidingWindow : KvKind::kFull;
    need.num_heads = layer.num_heads;
    need.num_kv_heads = layer.num_kv_heads;
    need.head_dim_k = layer.head_dim;
    need.head_dim_v = layer.head_dim_v;
    if (spec.encoder) {
      need.head_dim_k = need.head_dim_v = least_of(options.encoder_head_dims, layer.head_dim);
    }
    need.dtype = options.dtype;
    need.window = has_window ? layer.window : 0;
    need.block_size = options.block_size;
    need.kernel_block_size = options.kernel_block_size;
    if (!backends.empty()) {
      need.backend = backends[l];
    }
  }
  return needs;
}

Result<KvPlan> plan_kv(std::span<const DecoderSpec* const> models,
                       const KvOptions& options,
                       std::span<const std::string> backends) {
  std::vector<std::vector<KvNeed>> needs(models.size());  // of the layers with keys and values
  for (size_t m = 0; m < models.size(); ++m) {
    const std::vector<KvNeed> all =
        kv_needs(*models[m], options, m == 0 ? backends : std::span<const std::string>());
    for (size_t l = 0; l < all.size(); ++l) {
      if (models[m]->layers[l].attention.has_own_kv() && (l == 0 || !models[m]->encoder)) {
        needs[m].push_back(all[l]);
      }
    }
  }
  Result<KvPlan> plan = plan_kv(needs, options.layout);
  if (!plan) {
    return plan;
  }
  std::vector<LayerKvPlace> places;
  plan->first_layer.clear();
  auto own = plan->layers.begin();
  for (const DecoderSpec* model : models) {
    const size_t first = places.size();
    plan->first_layer.push_back(static_cast<int32_t>(first));
    for (const LayerSpec& layer : model->layers) {
      if (model->encoder) {
        places.push_back(plan->layers.front());
        continue;
      }
      const int32_t source = layer.attention.kv_source;
      places.push_back(source == kOwnKv ? *own++ : places[first + static_cast<size_t>(source)]);
    }
  }
  plan->layers = std::move(places);
  return plan;
}

Result<KvPlan> plan_kv(const DecoderSpec& spec,
                       const KvOptions& options,
                       std::span<const std::string> backends) {
  const DecoderSpec* const model = &spec;
  return plan_kv({&model, 1}, options, backends);
}

std::vector<AttentionNeed> attention_needs(std::span<const AttentionSpec> layers,
                                           const KvPlan& plan,
                                           int32_t group,
                                           const AttentionNeed& common) {
  const KvGroupSpec& kv = plan.groups[static_cast<size_t>(group)];
  std::vector<AttentionNeed> needs;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (plan.layers[l].group != group) {
      continue;
    }
    AttentionNeed need = common;
    need.layer = static_cast<int32_t>(l);
    need.kv = kv;
    need.padded_pages = kv.layer_block_bytes() < KvCacheSpec{plan.groups, 0}.page_bytes();
    need.num_heads = layers[l].num_heads;
    need.sinks = layers[l].sinks;
    need.soft_cap = layers[l].soft_cap != 0.0F;
    need.causal = layers[l].causal;
    need.output_gate = layers[l].output_gate;
    needs.push_back(need);
  }
  return needs;
}

}  // namespace warprow
