// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_spec.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace warprow {

AttentionSpec plain_attention(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  AttentionSpec out;
  out.num_heads = num_heads;
  out.num_kv_heads = num_kv_heads;
  out.head_dim = head_dim;
  out.head_dim_v = head_dim;
  out.scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  return out;
}

void set_uniform_layers(DecoderSpec& spec, const LayerSpec& layer) {
  spec.layers.assign(static_cast<size_t>(spec.num_layers), layer);
}

namespace {

// Layers of one class may share a group.
struct LayerClass {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  int32_t window = 0;
  std::string backend;
  bool operator==(const LayerClass&) const = default;
};

int32_t num_groups(const std::vector<int32_t>& counts, int32_t size) {
  int32_t groups = 0;
  for (const int32_t count : counts) {
    groups += ceil_div(count, size);
  }
  return groups;
}

// Layers per group: the smallest class's count, or the largest's if that is less than half as many
// again; more where that would be too many groups.
int32_t group_size(const std::vector<int32_t>& counts) {
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  int32_t size = 2 * *most < 3 * *least ? *most : *least;
  while (size < *most && num_groups(counts, size) > kMaxKvGroups) {
    ++size;
  }
  return size;
}

}  // namespace

namespace {

// What is wrong with a layer; empty: nothing.
std::string unmet(const DecoderSpec& spec, const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  if (attention.num_kv_heads < 1 || attention.num_heads % attention.num_kv_heads != 0) {
    return fmt::format("{} attention heads are no multiple of {} key-value heads",
                       attention.num_heads,
                       attention.num_kv_heads);
  }
  if (attention.head_dim < 8 || attention.head_dim % 8 != 0) {
    return fmt::format("head size {} is not a multiple of 8", attention.head_dim);
  }
  if (attention.head_dim_v != attention.head_dim) {
    return fmt::format("head sizes {} of keys and {} of values are not equal",
                       attention.head_dim,
                       attention.head_dim_v);
  }
  if (attention.rope == kNoRope) {
    return {};
  }
  if (attention.rope < 0 || attention.rope >= static_cast<int32_t>(spec.ropes.size())) {
    return fmt::format("rope {} of {}", attention.rope, spec.ropes.size());
  }
  const int32_t rot_dim = spec.ropes[static_cast<size_t>(attention.rope)].rot_dim;
  if (rot_dim > attention.head_dim) {
    return fmt::format("rope rotates {} of {} elements of a head", rot_dim, attention.head_dim);
  }
  return {};
}

}  // namespace

Result<void> check_decoder_spec(const DecoderSpec& spec) {
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    if (const std::string why = unmet(spec, spec.layers[l]); !why.empty()) {
      return fail(ErrorCode::kUnsupported, fmt::format("layer {}: {}", l, why));
    }
  }
  return {};
}

KvPlan plan_kv_groups(const DecoderSpec& spec,
                      const KvWish& wish,
                      std::span<const std::string> backends) {
  WR_CHECK(backends.empty() || backends.size() == spec.layers.size());
  std::vector<LayerClass> classes;  // distinct, in order of appearance
  std::vector<int32_t> counts;
  std::vector<int32_t> class_of;
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const AttentionSpec& layer = spec.layers[l].attention;
    const LayerClass mine{layer.num_heads,
                          layer.num_kv_heads,
                          layer.head_dim,
                          layer.head_dim_v,
                          layer.window,
                          backends.empty() ? "auto" : backends[l]};
    const auto at = std::find(classes.begin(), classes.end(), mine);
    const auto index = static_cast<size_t>(at - classes.begin());
    if (at == classes.end()) {
      classes.push_back(mine);
      counts.push_back(0);
    }
    ++counts[index];
    class_of.push_back(static_cast<int32_t>(index));
  }

  KvPlan plan;
  const int32_t size = group_size(counts);
  std::vector<int32_t> first_group;
  for (size_t c = 0; c < classes.size(); ++c) {
    first_group.push_back(static_cast<int32_t>(plan.groups.size()));
    KvGroupSpec group;
    group.kind = classes[c].window > 0 ? KvKind::kSlidingWindow : KvKind::kFull;
    group.layout = wish.layout;
    group.dtype = wish.dtype;
    group.num_layers = size;
    group.num_kv_heads = classes[c].num_kv_heads;
    group.head_dim_k = classes[c].head_dim_k;
    group.head_dim_v = classes[c].head_dim_v;
    group.window = classes[c].window;
    group.block_size = wish.block_size;
    group.kernel_block_size = wish.kernel_block_size;
    const auto parts = static_cast<size_t>(ceil_div(counts[c], size));
    plan.groups.insert(plan.groups.end(), parts, group);
    plan.backends.insert(plan.backends.end(), parts, classes[c].backend);
    plan.num_heads.insert(plan.num_heads.end(), parts, classes[c].num_heads);
  }
  std::vector<int32_t> seen(classes.size(), 0);
  for (const int32_t c : class_of) {
    const int32_t nth = seen[static_cast<size_t>(c)]++;
    plan.layers.push_back({first_group[static_cast<size_t>(c)] + nth / size, nth % size});
  }
  return plan;
}

}  // namespace warprow
