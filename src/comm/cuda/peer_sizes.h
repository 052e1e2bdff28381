// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "device/cuda/peer_group.h"

namespace warprow::cuda {

// The regions of a tensor-parallel group, and those of the stages of a pipeline. Between stages a send waits only if the
// receiver has not read the results of stages + 1 steps, of kMostResultBytes each (comm/cpu/shared_memory_communicator.h).
PeerSizes tensor_sizes();
PeerSizes stage_sizes(int32_t num_stages);

}  // namespace warprow::cuda
