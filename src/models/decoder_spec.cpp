// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_spec.h"

#include "base/math.h"

#include <algorithm>
#include <cmath>

namespace warprow {

float DecoderSpec::attention_scale() const {
  return 1.0F / std::sqrt(static_cast<float>(head_dim));
}

namespace {

// Layers per group: the smallest class's count, or the largest's if that is less than half as many
// again.
int32_t group_size(const std::vector<int32_t>& counts) {
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  return 2 * *most < 3 * *least ? *most : *least;
}

}  // namespace

KvPlan plan_kv_groups(const DecoderSpec& spec,
                      DType kv_dtype,
                      int32_t block_size,
                      int32_t kernel_block_size) {
  std::vector<int32_t> windows;  // distinct, in order of appearance
  std::vector<int32_t> counts;
  std::vector<int32_t> class_of;
  for (const LayerSpec& layer : spec.layers) {
    const auto at = std::find(windows.begin(), windows.end(), layer.window);
    const auto index = static_cast<size_t>(at - windows.begin());
    if (at == windows.end()) {
      windows.push_back(layer.window);
      counts.push_back(0);
    }
    ++counts[index];
    class_of.push_back(static_cast<int32_t>(index));
  }

  KvPlan plan;
  const int32_t size = group_size(counts);
  std::vector<int32_t> first_group;
  for (size_t c = 0; c < windows.size(); ++c) {
    first_group.push_back(static_cast<int32_t>(plan.groups.size()));
    KvGroupSpec group;
    group.kind = windows[c] > 0 ? KvKind::kSlidingWindow : KvKind::kFull;
    group.dtype = kv_dtype;
    group.num_layers = size;
    group.num_kv_heads = spec.num_kv_heads;
    group.head_dim_k = spec.head_dim;
    group.head_dim_v = spec.head_dim;
    group.window = windows[c];
    group.block_size = block_size;
    group.kernel_block_size = kernel_block_size;
    plan.groups.insert(plan.groups.end(), static_cast<size_t>(ceil_div(counts[c], size)), group);
  }
  std::vector<int32_t> seen(windows.size(), 0);
  for (const int32_t c : class_of) {
    const int32_t nth = seen[static_cast<size_t>(c)]++;
    plan.layers.push_back({first_group[static_cast<size_t>(c)] + nth / size, nth % size});
  }
  return plan;
}

}  // namespace warprow
