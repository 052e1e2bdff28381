// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_planner.h"

#include "base/math.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Kernel blocks are equally spaced in a page, whatever bytes lie between them, and copies need keys and values
// aligned to 16 bytes.
constexpr int64_t kAlignment = 32;

// Layers of equal needs.
struct LayerClass {
  KvNeed need;
  int32_t num_layers = 0;
  int32_t first_group = 0;
};

tl::unexpected<Error> refuse(size_t model, size_t num_models, size_t layer, std::string why) {
  const std::string of = num_models > 1 ? fmt::format(" of model {}", model) : std::string();
  return fail(ErrorCode::kUnsupported, fmt::format("KV cache of layer {}{}: {}", layer, of, why));
}

// Why no group can serve a need; empty if one can.
std::string unmet(const KvNeed& need, const KvLayout& layout) {
  if (need.kind == KvKind::kState) {
    return need.state_bytes <= 0 ? "a state of no bytes"
           : layout.apart        ? "states with keys and values apart are not supported"
                                 : "";
  }
  if (need.kind != KvKind::kFull && need.kind != KvKind::kSlidingWindow) {
    return fmt::format("kind {} is not supported (known: full, sliding window, state)",
                       kv_kind_name(need.kind));
  }
  if ((need.kind == KvKind::kSlidingWindow) != (need.window > 0)) {
    return fmt::format("kind {} with a window of {}", kv_kind_name(need.kind), need.window);
  }
  if (need.num_kv_heads <= 0 || need.num_heads < 0 || need.head_dim_k <= 0) {
    return fmt::format(
        "{} query heads, {} KV heads of {}", need.num_heads, need.num_kv_heads, need.head_dim_k);
  }
  if (need.head_dim_k != need.head_dim_v) {
    return fmt::format("keys of {} and values of {} elements a head, which must be equal",
                       need.head_dim_k,
                       need.head_dim_v);
  }
  if (need.kernel_block_size <= 0 || need.block_size <= 0 ||
      need.block_size % need.kernel_block_size != 0) {
    return fmt::format(
        "blocks of {} tokens in kernel blocks of {}", need.block_size, need.kernel_block_size);
  }
  return {};
}

int32_t num_groups(const std::vector<LayerClass>& classes, int32_t size) {
  int32_t groups = 0;
  for (const LayerClass& each : classes) {
    groups += ceil_div(each.num_layers, size);
  }
  return groups;
}

// Layers of a group.
int32_t group_size(const std::vector<LayerClass>& classes) {
  const auto [least, most] =
      std::ranges::minmax(classes, {}, [](const LayerClass& each) { return each.num_layers; });
  int32_t size = 2 * most.num_layers < 3 * least.num_layers ? most.num_layers : least.num_layers;
  while (size < most.num_layers && num_groups(classes, size) > kMaxKvGroups) {
    ++size;
  }
  return size;
}

// How many pages of a need its group puts into one page of page_bytes; of a state, how many pages it takes.
int32_t pages_in(const KvNeed& need, int64_t page_bytes) {
  if (need.kind == KvKind::kState) {
    return static_cast<int32_t>(ceil_div(need.state_bytes, page_bytes));
  }
  const int64_t fit = page_bytes / need.page_bytes();
  const int64_t most = std::max(1, kMaxGrownPage / need.block_size);
  return static_cast<int32_t>(std::min(fit, most));
}

KvGroupSpec group_of(const KvNeed& need, const KvLayout& layout, int32_t size, int32_t pages) {
  KvGroupSpec group;
  group.kind = need.kind;
  group.layout = layout;
  group.dtype = need.dtype;
  group.num_layers = size;
  if (need.kind == KvKind::kState) {
    group.state_pages = pages;
    group.block_size = need.block_size;
    group.kernel_block_size = need.kernel_block_size;
    return group;
  }
  group.num_kv_heads = need.num_kv_heads;
  group.head_dim_k = need.head_dim_k;
  group.head_dim_v = need.head_dim_v;
  group.window = need.window;
  group.block_size = need.block_size * pages;
  group.kernel_block_size = need.kernel_block_size * pages;
  return group;
}

}  // namespace

Result<KvPlan> plan_kv(std::span<const std::vector<KvNeed>> models, const KvLayout& layout) {
  std::vector<LayerClass> classes;  // distinct, in order of appearance
  std::vector<size_t> class_of;
  int64_t page_bytes = 0;
  for (size_t m = 0; m < models.size(); ++m) {
    for (size_t l = 0; l < models[m].size(); ++l) {
      const KvNeed& need = models[m][l];
      if (std::string why = unmet(need, layout); !why.empty()) {
        return refuse(m, models.size(), l, std::move(why));
      }
      const auto at = std::ranges::find(classes, need, &LayerClass::need);
      class_of.push_back(static_cast<size_t>(at - classes.begin()));
      if (at == classes.end()) {
        classes.push_back({need});
      }
      ++classes[class_of.back()].num_layers;
      page_bytes = std::max(page_bytes, need.page_bytes());  // 0 for a state
    }
  }
  if (classes.empty()) {
    return fail(ErrorCode::kUnsupported, "KV cache: no layers");
  }
  if (page_bytes == 0) {
    return fail(ErrorCode::kUnsupported,
                "KV cache: layers with states only; one layer of attention is needed");
  }
  if (classes.size() > static_cast<size_t>(kMaxKvGroups)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("layers of {} kinds need a KV group each, and there are {}",
                            classes.size(),
                            kMaxKvGroups));
  }

  KvPlan plan;
  const int32_t size = group_size(classes);
  for (LayerClass& each : classes) {
    const int32_t kernel_blocks = each.need.block_size / each.need.kernel_block_size;
    if (page_bytes % (kernel_blocks * kAlignment) != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("KV cache: a page of {} bytes cannot be cut into {} kernel blocks",
                              page_bytes,
                              kernel_blocks));
    }
    each.first_group = static_cast<int32_t>(plan.groups.size());
    const KvGroupSpec group = group_of(each.need, layout, size, pages_in(each.need, page_bytes));
    const auto parts = static_cast<size_t>(ceil_div(each.num_layers, size));
    plan.groups.insert(plan.groups.end(), parts, group);
    plan.backends.insert(plan.backends.end(), parts, each.need.backend);
    plan.num_heads.insert(plan.num_heads.end(), parts, each.need.num_heads);
  }
  std::vector<int32_t> seen(classes.size(), 0);
  for (const size_t c : class_of) {
    const int32_t nth = seen[c]++;
    plan.layers.push_back({classes[c].first_group + nth / size, nth % size});
  }
  int32_t first = 0;
  for (const std::vector<KvNeed>& model : models) {
    plan.first_layer.push_back(first);
    first += static_cast<int32_t>(model.size());
  }
  return plan;
}

KvPlan stage_of(const KvPlan& plan, int32_t first, int32_t last) {
  const auto alike = [&plan](size_t a, size_t b) {
    return plan.groups[a] == plan.groups[b] && plan.backends[a] == plan.backends[b] &&
           plan.num_heads[a] == plan.num_heads[b];
  };
  KvPlan mine = plan;
  std::vector<int32_t> num_layers(plan.groups.size(), 0);
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    LayerKvPlace& place = mine.layers[l];
    if (std::cmp_less(l, first) || std::cmp_greater_equal(l, last)) {
      place.index = kOtherStage;
      continue;
    }
    const auto whole = static_cast<size_t>(place.group);
    auto least = whole;  // the least loaded group of its class
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      least = alike(g, whole) && num_layers[g] < num_layers[least] ? g : least;
    }
    place = {static_cast<int32_t>(least), num_layers[least]++};
  }
  for (KvGroupSpec& group : mine.groups) {
    group.num_layers = std::ranges::max(num_layers);
  }
  return mine;
}

}  // namespace warprow
