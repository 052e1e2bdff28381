// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "device/cuda/peer_group.h"

#include <memory>

namespace warprow::cuda {

// One rank's communicator over CUDA streams, for GPUs of one host that write into each other's memory. The group's
// regions were filled with zeros before any rank uses them, and outlive it. Construction does not wait for other ranks.
std::unique_ptr<Communicator> make_peer_communicator(const PeerGroup& group);

}  // namespace warprow::cuda
