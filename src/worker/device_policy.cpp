// SPDX-License-Identifier: Apache-2.0
#include "worker/device_policy.h"

#include "base/check.h"

namespace warprow {
namespace {

// float32 is exact throughout. auto multiplies quantised weights by int8 activations and bf16 weights by bf16 ones.
// A tenth of the memory is left for the process and the page cache.
constexpr DevicePolicy kCpuPolicy = {.act_dtype = DType::kF32,
                                     .act_format = ActFormat::kRounded,
                                     .memory_share = 0.9,
                                     .kv_takes_rest = false,
                                     .graphs_take_memory = false,
                                     .loads_kernels = false,
                                     .deep_chunk_ops_per_sm = 0,
                                     .foreign_bytes = 0};
// Deep chunks: prefill attention of an H200 at 3.2 TFLOP/s an SM.
// Foreign: on an H200 5 to 11 MB by the end of start-up, and a few more when the first requests use further
// kernels. The context exists before anything is planned.
constexpr DevicePolicy kCudaPolicy = {.act_dtype = DType::kBF16,
                                      .act_format = ActFormat::kF32,
                                      .memory_share = 0,
                                      .kv_takes_rest = true,
                                      .graphs_take_memory = true,
                                      .loads_kernels = true,
                                      .deep_chunk_ops_per_sm = int64_t{800'000'000'000},
                                      .foreign_bytes = int64_t{32} << 20};

}  // namespace

const DevicePolicy& device_policy(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return kCpuPolicy;
    case DeviceKind::kCuda:
      return kCudaPolicy;
  }
  WR_CHECK(false, "a kind of device without a policy");
}

}  // namespace warprow
