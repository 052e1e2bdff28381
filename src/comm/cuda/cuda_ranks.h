// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "comm/host_group.h"
#include "comm/rank_place.h"
#include "device/device.h"

#include <cstdint>
#include <memory>

namespace warprow::cuda {

// How GPU ranks exchange data.
enum class GpuTransport : uint8_t {
  kAuto,  // through each other's memory; where GPUs do not reach it, with NCCL
  kNccl
};

// The communicators of a rank on a GPU.
//
// Owns: them, and the memory that the other ranks write into. Outlives what was enqueued.
class CudaRanks {
 public:
  virtual ~CudaRanks() = default;
  // Null in groups of one.
  [[nodiscard]] virtual Communicator* tensor() const = 0;
  [[nodiscard]] virtual Communicator* pipeline() const = 0;
};

// All ranks call it at the same time, each on the thread that made its device. Throws StartupError on all of them if GPUs
// do not reach each other.
std::unique_ptr<CudaRanks> join_cuda_ranks(const Device& device,
                                           const RankPlace& place,
                                           HostGroup& all,
                                           GpuTransport transport);

// The memory on its GPU that a rank's communicators take.
int64_t cuda_comm_bytes(const RankPlace& place);

}  // namespace warprow::cuda
