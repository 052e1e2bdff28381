// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_backend.h"
#include "attention/cpu_paged.h"
#include "attention/flashinfer.h"
#include "attention/native.h"
#include "attention/phased.h"

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
    {&flashinfer_capabilities, &make_flashinfer},
    {&native_attention_capabilities, &make_native_attention},
    {&flashinfer_fa2_capabilities, &make_flashinfer_fa2},
};

// The first need of the group that the backend does not meet; empty when it meets all.
std::string unmet_need(const AttentionCapabilities& can,
                       const DeviceFacts& device,
                       const KvGroupSpec& group,
                       int32_t num_heads) {
  const int32_t dim = std::max(group.head_dim_k, group.head_dim_v);
  if (can.device != device.kind ||
      (can.compute_capability != 0 && can.compute_capability != device.compute_capability)) {
    return "this device";
  }
  if (dim > can.max_head_dim || group.head_dim_k % can.head_dim_multiple != 0 ||
      group.head_dim_v % can.head_dim_multiple != 0) {
    return fmt::format("head size {}", dim);
  }
  if ((group.dtype == DType::kF32 && !can.kv_f32) ||
      (group.dtype == DType::kBF16 && !can.kv_bf16)) {
    return fmt::format("KV cache dtype {}", dtype_name(group.dtype));
  }
  if (can.max_group != 0 && num_heads > can.max_group * group.num_kv_heads) {
    return fmt::format("{} query heads for {} KV heads", num_heads, group.num_kv_heads);
  }
  if (group.kernel_block_size % can.kernel_block_multiple != 0) {
    return fmt::format("kernel block size {}", group.kernel_block_size);
  }
  if (group.window > 0 && !can.sliding_window) {
    return "sliding windows";
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<AttentionBackend>> make_attention_backend(std::string_view name,
                                                                 const DeviceFacts& device,
                                                                 const KvGroupSpec& group,
                                                                 int32_t num_heads) {
  std::string known;
  std::string why;  // the named backend's last entry
  for (const Entry& entry : kBackends) {
    const AttentionCapabilities& can = entry.capabilities();
    if (known.find(can.name) == std::string::npos) {
      known += (known.empty() ? "" : ", ") + std::string(can.name);
    }
    if (name != "auto" && name != can.name) {
      continue;
    }
    why = unmet_need(can, device, group, num_heads);
    if (why.empty()) {
      return entry.make();
    }
  }
  if (name != "auto" && !why.empty()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("attention backend {} does not support {}", name, why));
  }
  return fail(ErrorCode::kUnsupported,
              name == "auto"
                  ? fmt::format("no attention backend for this model (tried {})", known)
                  : fmt::format("unknown attention backend {} (known: auto, {})", name, known));
}

}  // namespace warprow
