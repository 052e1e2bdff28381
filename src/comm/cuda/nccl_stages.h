// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "comm/host_group.h"
#include "comm/rank_place.h"

#include <memory>

namespace warprow::cuda {

// One rank's communicator over CUDA streams with NCCL, for the stages of its pipeline; null in a group of one. It has
// only send and receive, which must not be captured in a graph. All ranks of the host group call it at the same time,
// each on the thread that made its device. Throws StartupError.
//
// NCCL's send waits until it is received. A send to a later stage does so too. One to an earlier stage is copied first and
// leaves on a stream of its own, as that stage may wait for this one: the results of stages + 1 steps may be under way to each,
// of kMostResultBytes at most.
std::unique_ptr<Communicator> make_nccl_stages(const RankPlace& place, HostGroup& all);

}  // namespace warprow::cuda
