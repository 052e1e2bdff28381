// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_device.h"

#include <fmt/format.h>

namespace warprow {

std::string describe_rank_device(const DeviceFacts& facts) {
  return facts.kind == DeviceKind::kCpu ? "a CPU"
                                        : fmt::format("GPU '{}' (compute capability {}.{})",
                                                      facts.name,
                                                      facts.compute_capability / 10,
                                                      facts.compute_capability % 10);
}

Result<void> check_rank_devices(const std::vector<std::string>& devices) {
  for (size_t rank = 1; rank < devices.size(); ++rank) {
    if (devices[rank] != devices.front()) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("rank {} runs on {} and rank 0 on {}; all ranks need devices of one "
                              "kind (--device, --device-ids)",
                              rank,
                              devices[rank],
                              devices.front()));
    }
  }
  return {};
}

Result<void> check_gpu(const EngineConfig& config,
                       const RankPlace& place,
                       const std::string& why_no_cuda) {
  if (config.device == "cuda" && place.world_size() > 1 && !why_no_cuda.empty()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--device: rank {} of {} has no GPU ({}); each rank needs its own",
                            place.rank,
                            place.world_size(),
                            why_no_cuda));
  }
  return {};
}

Result<void> check_transport(const EngineConfig& config, const std::string& device) {
  if ((config.rank_transport == "nccl" && device == "cpu") ||
      (config.rank_transport == "tcp" && device == "cuda")) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--rank-transport: {} is not for {}",
                            config.rank_transport,
                            device == "cpu" ? "CPU ranks" : "GPUs"));
  }
  return {};
}

}  // namespace warprow
