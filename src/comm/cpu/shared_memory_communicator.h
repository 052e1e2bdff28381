// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/communicator.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace warprow {

// How much memory a group shares. A message goes in chunks of a slot; larger slots mean fewer waits.
struct SlotSizes {
  size_t collective_bytes = 512 << 10;  // of each rank, twice
  size_t pair_bytes = 128 << 10;        // of each direction between two ranks, num_pair_slots times
  uint32_t num_pair_slots = 2;          // chunks that a send may leave behind before it waits
};

// The memory that a group of this many ranks shares.
size_t shared_memory_communicator_bytes(int32_t size, SlotSizes sizes = {});

// For the stages of a pipeline, which send and receive only. A send waits only if the receiver has not read the results of
// stages + 1 steps, of kMostResultBytes each (runner/stage_link.h).
inline constexpr size_t kMostResultBytes = 10 * (size_t{128} << 10);
SlotSizes stage_slots(int32_t num_stages);
// What a stage receives passes through this much of the memory; the rest of it is not touched.
size_t stage_incoming_bytes(const GroupPlace& place);

// One rank's communicator over CPU streams for ranks of one host, in one process or in several. All ranks pass the same
// memory, aligned to a page, which started as zeros and outlives the communicators, and the same sizes. Construction
// does not wait for other ranks.
std::unique_ptr<Communicator> make_shared_memory_communicator(GroupPlace place,
                                                              std::byte* memory,
                                                              AbortFlag& abort,
                                                              SlotSizes sizes = {});

}  // namespace warprow
