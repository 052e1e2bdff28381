// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/peer_sizes.h"

#include "base/math.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/cuda/cuda_ranks.h"

#include <algorithm>
#include <bit>

namespace warprow::cuda {
namespace {

constexpr int32_t kTensorSlots = 2;
// Room for the residual stream of a few hundred rows, so that a stage does not wait for the next one.
constexpr int32_t kLeastStageSlots = 8;
constexpr int64_t kDevicePage = int64_t{2} << 20;  // what a device allocates at least

int64_t region_bytes(int32_t size, const PeerSizes& sizes) {
  return size == 1 ? 0 : round_up(PeerLayout(size, sizes).bytes, kDevicePage);
}

}  // namespace

PeerSizes tensor_sizes() { return {true, kTensorSlots}; }

PeerSizes stage_sizes(int32_t num_stages) {
  constexpr auto kResultBytes = static_cast<int64_t>(kMostResultBytes);
  const auto of_step =
      static_cast<uint32_t>(ceil_div(ceil_div(kResultBytes, kMoveChunk), int64_t{kMoveBlocks}));
  const uint32_t slots = static_cast<uint32_t>(num_stages + 1) * of_step;
  return {false, std::max(kLeastStageSlots, static_cast<int32_t>(std::bit_ceil(slots)))};
}

int64_t cuda_comm_bytes(const RankPlace& place) {
  return region_bytes(place.tensor.size, tensor_sizes()) +
         region_bytes(place.pipeline.size, stage_sizes(place.pipeline.size));
}

}  // namespace warprow::cuda
