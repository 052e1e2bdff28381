// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/cuda/cuda_ranks.h"
#include "comm/rank_place.h"
#include "config/engine_config.h"
#include "executor/executor.h"
#include "executor/mp/rank_main.h"
#include "worker/rank.h"

#include <cstdint>
#include <memory>
#include <string>

namespace warprow {

// A rank's part of the host that it runs on.
struct HostShare {
  int32_t memory_ranks = 1;  // CPU ranks that divide the memory
  int32_t core_ranks = 1;    // those that divide the cores, and the rank's place among them
  int32_t nth_core_rank = 0;
  int32_t gpu_ranks = 1;  // those that see the same GPUs, and the rank's place among them
  int32_t nth_gpu_rank = 0;

  // Where all ranks run on one host.
  static HostShare of_one_host(const RankPlace& place) {
    const int32_t size = place.world_size();
    return {size, size, place.rank, size, place.rank};
  }
};

// A rank in this process, on a device of its own.
//
// Owns: device, executor, and on a GPU the communicators; those of CPU ranks outlive it.
// Thread: one.
class LocalRank {
 public:
  // Loads the model, together with the other ranks. Throws StartupError.
  LocalRank(const EngineConfig& config,
            const RankPlace& place,
            const HostShare& share,
            const RankComms& comms,
            const WrapRank& wrap);

  [[nodiscard]] Executor& executor() { return *executor_; }
  [[nodiscard]] const std::string& device() const { return device_; }

 private:
  std::string device_;
  std::unique_ptr<cuda::CudaRanks> cuda_ranks_;  // null on a CPU, and of one rank
  std::unique_ptr<Executor> executor_;
};

}  // namespace warprow
