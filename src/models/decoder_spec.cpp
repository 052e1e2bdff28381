// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_spec.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <cmath>

namespace warprow {

float DecoderSpec::attention_scale() const {
  return 1.0F / std::sqrt(static_cast<float>(head_dim));
}

namespace {

// Layers of one class may share a group.
struct LayerClass {
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

KvPlan plan_kv_groups(const DecoderSpec& spec,
                      const KvWish& wish,
                      std::span<const std::string> backends) {
  WR_CHECK(backends.empty() || backends.size() == spec.layers.size());
  std::vector<LayerClass> classes;  // distinct, in order of appearance
  std::vector<int32_t> counts;
  std::vector<int32_t> class_of;
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const LayerClass mine{spec.layers[l].window, backends.empty() ? "auto" : backends[l]};
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
    group.num_kv_heads = spec.num_kv_heads;
    group.head_dim_k = spec.head_dim;
    group.head_dim_v = spec.head_dim;
    group.window = classes[c].window;
    group.block_size = wish.block_size;
    group.kernel_block_size = wish.kernel_block_size;
    const auto parts = static_cast<size_t>(ceil_div(counts[c], size));
    plan.groups.insert(plan.groups.end(), parts, group);
    plan.backends.insert(plan.backends.end(), parts, classes[c].backend);
  }
  std::vector<int32_t> seen(classes.size(), 0);
  for (const int32_t c : class_of) {
    const int32_t nth = seen[static_cast<size_t>(c)]++;
    plan.layers.push_back({first_group[static_cast<size_t>(c)] + nth / size, nth % size});
  }
  return plan;
}

}  // namespace warprow
