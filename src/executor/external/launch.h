// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "comm/rank_place.h"
#include "config/engine_config.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace warprow {

// Whether the settings say that a launcher starts the ranks.
inline bool is_external(const EngineConfig& config) {
  return config.distributed_executor_backend == "external_launcher";
}

// Whether this rank's results are compared with those of others: all ranks of the last stage have the same.
inline bool compares_results(const RankPlace& place) {
  return place.tensor.size > 1 && place.pipeline.rank == place.pipeline.size - 1;
}

// How a launcher started this process: as one rank of several, which find each other at rank 0's address.
struct Launch {
  int32_t rank = 0;
  int32_t size = 1;
  std::string address = "127.0.0.1";  // of rank 0's host
  uint16_t port = 29500;              // rank 0 listens there
  std::string run_id;  // the launcher's name of this run, so that two runs do not mix; may be empty
  std::string size_variable;  // which variable said the size, for messages
};

// A variable of the environment; nullopt if it is unset or empty.
using ReadVariable = std::function<std::optional<std::string>(const std::string& name)>;

// Reads rank and size from the first launcher whose variables are set, in this order:
//
//   RANK, WORLD_SIZE                           torchrun, scripts
//   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE mpirun of Open MPI
//   PMI_RANK, PMI_SIZE                         mpirun of MPICH and Intel
//   SLURM_PROCID, SLURM_NTASKS                 srun
//   LWS_WORKER_INDEX, LWS_GROUP_SIZE           a LeaderWorkerSet of Kubernetes
//
// If several of the first three are set, they must agree. The last two count only if none of the first three is set:
// they may describe the system that started another launcher. MASTER_ADDR and MASTER_PORT say where rank 0 is. Without
// MASTER_PORT it is 29500; MASTER_ADDR may be missing if the launcher says that all ranks are on one host, or gives
// LWS_LEADER_ADDRESS.
// kInvalidArgument names variable, value and limit.
Result<Launch> read_launch(const ReadVariable& variable);
// Of this process.
Result<Launch> read_launch();

// Whether the launcher started the ranks that the settings ask for.
Result<void> check_launch(const Launch& launch, int32_t tensor_size, int32_t pipeline_size);

}  // namespace warprow
