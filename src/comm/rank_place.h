// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"

#include <cstdint>

namespace warprow {

// Of an engine.
inline constexpr int32_t kMaxRanks = 64;

// The place of a rank among all ranks of an engine. Ranks of one pipeline stage follow each other: they are a tensor
// parallel group, since they exchange the most.
struct RankPlace {
  int32_t rank = 0;
  GroupPlace tensor;    // splits each layer
  GroupPlace pipeline;  // splits the list of layers

  [[nodiscard]] int32_t world_size() const { return tensor.size * pipeline.size; }
  // The rank whose results the executor takes: the first of the last stage.
  [[nodiscard]] int32_t output_rank() const { return (pipeline.size - 1) * tensor.size; }
};

constexpr RankPlace rank_place(int32_t rank, int32_t tensor_size, int32_t pipeline_size) {
  return {rank, {rank % tensor_size, tensor_size}, {rank / tensor_size, pipeline_size}};
}

// A group as one of its ranks sees it.
struct RankGroup {
  GroupPlace place;
  // Null in a group of one, and where memory is only planned.
  Communicator* comm = nullptr;

  [[nodiscard]] bool alone() const { return place.size == 1; }
};

}  // namespace warprow
