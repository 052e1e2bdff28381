// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/device.h"
#include "layers/linear.h"

#include <cstdint>

namespace warprow {

// What the plan decides by the kind of device: one row per kind, so that nothing else in this room tests the kind.
struct DevicePolicy {
  DType act_dtype = DType::kF32;               // of activations between matrices
  ActFormat act_format = ActFormat::kRounded;  // of linears with --dtype auto; with others kF32
  // Share of memory that an engine may plan for; 0: gpu_memory_utilization.
  double memory_share = 0;
  // The KV cache takes what everything else leaves, unless its bytes are given; else resolve() has decided its
  // bytes.
  bool kv_takes_rest = false;
  bool graphs_take_memory = false;
  bool loads_kernels = false;  // at their first launch, which takes long
  // Attention operations of a prompt chunk that take about a quarter of a second, for each SM; 0: not known.
  int64_t deep_chunk_ops_per_sm = 0;
  // Estimate: what the driver and its libraries take besides what is planned.
  int64_t foreign_bytes = 0;
};
const DevicePolicy& device_policy(DeviceKind kind);

// The part of the estimate that kernels which load with the first requests may still take after everything else has
// been measured.
inline constexpr int64_t kLateForeignBytes = int64_t{16} << 20;

}  // namespace warprow
