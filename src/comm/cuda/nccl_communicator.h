// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "comm/host_group.h"
#include "comm/rank_place.h"

#include <memory>

namespace warprow::cuda {

// One rank's communicator over CUDA streams with NCCL, for the rank's tensor-parallel group; null in a group of one. All
// ranks of the host group call it at the same time, each on the thread that made its device. Throws StartupError.
//
// Sums keep their order: of more than two ranks values are gathered, and every rank adds them in rank order. A send waits
// until it is received. An operation that waits for a rank which is gone ends with the process.
std::unique_ptr<Communicator> make_nccl_communicator(const RankPlace& place, HostGroup& all);

}  // namespace warprow::cuda
