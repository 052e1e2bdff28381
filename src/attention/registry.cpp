// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_backend.h"
#include "attention/cpu_paged.h"
#include "attention/flashinfer.h"
#include "attention/native.h"
#include "attention/phased.h"
#include "attention/plain.h"
#include "attention/state_pages.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

// Every backend, the device's preferred one first. Entries of one name have different kernels.
struct Entry {
  const AttentionCapabilities& (*capabilities)();
  std::unique_ptr<AttentionBackend> (*make)();
};
constexpr Entry kBackends[] = {
    {&cpu_paged_capabilities, &make_cpu_paged},
    {&phased_attention_capabilities, &make_phased_attention},
    {&native_attention_capabilities, &make_native_attention},
    {&flashinfer_capabilities, &make_flashinfer},
    {&flashinfer_fa2_capabilities, &make_flashinfer_fa2},
    {&float32_attention_capabilities, &make_float32_attention},
    {&plain_attention_capabilities, &make_plain_attention},
    {&state_pages_capabilities, &make_state_pages},
    {&state_pages_cuda_capabilities, &make_state_pages_cuda},
};

// Whether it is a backend of state groups. "auto" skips these, and messages do not list them.
bool is_of_states(const AttentionCapabilities& can) {
  return can.max_head_dim == 0 && can.head_dims.empty();
}

// The names, each once.
std::string known_names() {
  std::string names = "auto";
  for (const Entry& entry : kBackends) {
    if (is_of_states(entry.capabilities())) {
      continue;
    }
    const std::string name = fmt::format(", {},", entry.capabilities().name);
    if ((names + ",").find(name) == std::string::npos) {
      names += name.substr(0, name.size() - 1);
    }
  }
  return names;
}

bool has_kernel(const AttentionCapabilities& can, const DeviceFacts& device, int32_t head_dim) {
  const auto has = [head_dim](std::span<const int32_t> dims) {
    return std::ranges::find(dims, head_dim) != dims.end();
  };
  if (!can.head_dims.empty()) {
    return has(can.head_dims) || (device.compute_capability == 90 && has(can.hopper_head_dims));
  }
  return head_dim <= can.max_head_dim && head_dim % can.head_dim_multiple == 0;
}

std::string capability_name(int32_t capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

std::string unmet_by_device(const AttentionCapabilities& can, const DeviceFacts& device) {
  if (can.device != device.kind) {
    return "this device";
  }
  const int32_t capability = device.compute_capability;
  if (capability < can.min_compute_capability || capability > can.max_compute_capability) {
    return fmt::format("compute capability {} (it wants {}{})",
                       capability_name(capability),
                       capability_name(can.min_compute_capability),
                       can.max_compute_capability == kAnyCapability
                           ? " or later"
                           : " to " + capability_name(can.max_compute_capability));
  }
  return {};
}

std::string unmet_by_cache(const AttentionCapabilities& can,
                           const DeviceFacts& device,
                           const AttentionNeed& need) {
  const KvGroupSpec& kv = need.kv;
  if (!has_kernel(can, device, kv.head_dim_k) || !has_kernel(can, device, kv.head_dim_v)) {
    return fmt::format("head size {}", std::max(kv.head_dim_k, kv.head_dim_v));
  }
  if ((kv.dtype == DType::kF32 && !can.kv_f32) || (kv.dtype == DType::kBF16 && !can.kv_bf16) ||
      (is_f8(kv.dtype) && !can.kv_f8)) {
    return fmt::format("KV cache dtype {}", dtype_name(kv.dtype));
  }
  if (can.max_group != 0 && need.num_heads > can.max_group * kv.num_kv_heads) {
    return fmt::format("{} query heads for {} KV heads", need.num_heads, kv.num_kv_heads);
  }
  if (kv.kernel_block_size % can.kernel_block_multiple != 0) {
    return fmt::format("kernel block size {}", kv.kernel_block_size);
  }
  if (kv.layout.order == KvOrder::kNHD && !can.kv_nhd) {
    return "a KV cache in NHD order";
  }
  if (kv.layout.apart && !can.kv_apart) {
    return "keys and values apart";
  }
  if (kv.layout.by_block && !can.kv_by_block) {
    return "a KV cache by block";
  }
  if (need.padded_pages && !can.padded_pages) {
    return "pages that are larger than the layer's";
  }
  return {};
}

std::string unmet_by_rules(const AttentionCapabilities& can, const AttentionNeed& need) {
  if (need.kv.window > 0 && !can.sliding_window) {
    return "sliding windows";
  }
  if (need.sinks && !can.sinks) {
    return "attention sinks";
  }
  if (need.soft_cap && !can.soft_cap) {
    return "soft caps";
  }
  if (need.output_gate && !can.output_gate) {
    return "output gates";
  }
  if (!need.causal && !can.not_causal) {
    return "attention that is not causal";
  }
  if (need.batch_invariant && !can.batch_invariant) {
    return "batch-invariant";
  }
  if (need.batch_invariant && need.kv.window > 0 && !can.batch_invariant_window) {
    return "sliding windows with batch-invariant";
  }
  return {};
}

std::string unmet_by_size(const AttentionCapabilities& can, const AttentionNeed& need) {
  const int64_t rows = need.max_num_rows;
  if (can.max_num_rows != 0 && rows > can.max_num_rows) {
    return fmt::format("{} rows in one step (at most {})", rows, can.max_num_rows);
  }
  if (can.max_rows_times_kv_heads != 0 &&
      rows * need.kv.num_kv_heads > can.max_rows_times_kv_heads) {
    return fmt::format("{} rows of {} KV heads in one step (at most {} together)",
                       rows,
                       need.kv.num_kv_heads,
                       can.max_rows_times_kv_heads);
  }
  if (can.max_tiles != 0 &&
      need.max_num_toks / can.tile_toks(need.kv.head_dim_k) + rows > can.max_tiles) {
    return fmt::format("{} tokens and {} rows in one step (at most {} tiles of {} queries)",
                       need.max_num_toks,
                       rows,
                       can.max_tiles,
                       can.tile_toks(need.kv.head_dim_k));
  }
  return {};
}

// What the backend lacks for the first unsupported layer, and the layer's number. Empty if it serves all layers.
std::string unmet_of_any(const AttentionCapabilities& can,
                         const DeviceFacts& device,
                         std::span<const AttentionNeed> needs,
                         int32_t& layer) {
  for (const AttentionNeed& need : needs) {
    if (std::string why = unmet_need(can, device, need); !why.empty()) {
      layer = need.layer;
      return why;
    }
  }
  return {};
}

}  // namespace

std::string unmet_need(const AttentionCapabilities& can,
                       const DeviceFacts& device,
                       const AttentionNeed& need) {
  std::string why = unmet_by_device(can, device);
  if (why.empty()) {
    why = unmet_by_cache(can, device, need);
  }
  if (why.empty()) {
    why = unmet_by_rules(can, need);
  }
  if (why.empty()) {
    why = unmet_by_size(can, need);
  }
  return why;
}

Result<std::unique_ptr<AttentionBackend>> make_attention_backend(
    std::string_view name, const DeviceFacts& device, std::span<const AttentionNeed> needs) {
  std::string tried;  // auto: what each of the device's backends lacks
  std::string why;    // the named backend's last entry
  int32_t layer = 0;
  for (const Entry& entry : kBackends) {
    const AttentionCapabilities& can = entry.capabilities();
    if (name == "auto" ? is_of_states(can) : name != can.name) {
      continue;
    }
    why = unmet_of_any(can, device, needs, layer);
    if (why.empty()) {
      return entry.make();
    }
    if (can.device == device.kind) {
      tried += fmt::format("{}{}: layer {}, {}", tried.empty() ? "" : "; ", can.name, layer, why);
    }
  }
  if (name == "auto") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("no attention backend for this model ({})", tried));
  }
  return fail(
      ErrorCode::kUnsupported,
      why.empty()
          ? fmt::format("unknown attention backend {} (known: {})", name, known_names())
          : fmt::format("layer {}: attention backend {} does not support {}", layer, name, why));
}

}  // namespace warprow
