// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "executor/mp/control_block.h"
#include "executor/mp/message_ring.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace warprow {

// What the executor and its rank processes share: the control block, one ring of commands to all ranks, a ring of
// answers from each, and what the ranks need to reach each other. Pages that nothing has reached take no memory.
//
// Owns: nothing; the memory outlives it. Every process has one of its own on the same memory.
struct RankMemory {
  // Bytes of shared memory, which start as zeros. Ranks are tensor_size x pipeline_size.
  static size_t bytes(int32_t tensor_size, int32_t pipeline_size);
  RankMemory(std::byte* memory, int32_t tensor_size, int32_t pipeline_size);

  ControlBlock* control;
  MessageRing commands;
  std::vector<MessageRing> answers;       // by rank
  std::byte* all_ranks;                   // of their host group
  std::vector<std::byte*> tensor_groups;  // of the communicator of each pipeline stage
  // Of the communicator between stages of the ranks with one place in their stages, by that place. None of one stage.
  std::vector<std::byte*> stage_groups;
};

}  // namespace warprow
