// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/mbarrier.cuh"

#include <cstdint>

// Rings of stages in shared memory between a producer and its consumers (sm_90a). A stage has two mbarriers. `full` counts
// the bytes that TMA writes, or the arrivals of those that fill the stage; `empty` counts the arrivals of its users. The full
// barriers of all stages come first.
namespace warprow::cuda {

// By number: fill n goes to stage n % kStages, so that several fills can be waited for at once.
template <uint32_t kStages>
struct Ring {
  uint32_t barriers;
  uint32_t data;
  uint32_t tile_bytes;

  [[nodiscard]] __device__ uint32_t full(uint32_t n) const { return barriers + n % kStages * 8; }
  [[nodiscard]] __device__ uint32_t empty(uint32_t n) const { return full(n) + 8 * kStages; }
  [[nodiscard]] __device__ uint32_t stage(uint32_t n) const {
    return data + n % kStages * tile_bytes;
  }
  [[nodiscard]] __device__ static uint32_t phase(uint32_t n) { return n / kStages % 2; }
  __device__ void init(uint32_t fillers, uint32_t users) const {
    for (uint32_t n = 0; n < kStages; ++n) {
      barrier_init(full(n), fillers);
      barrier_init(empty(n), users);
    }
  }
  __device__ void wait_full(uint32_t n) const { barrier_wait(full(n), phase(n)); }
  __device__ void wait_empty(uint32_t n) const { barrier_wait(empty(n), phase(n) ^ 1); }
};

// Step by step, with a number of stages known at run time: a position in the ring, without divisions.
template <int kMaxStages>
struct RingCursor {
  uint32_t data;
  uint32_t barriers;
  int stages;
  int stage = 0;
  uint32_t phase = 0;

  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  [[nodiscard]] __device__ uint32_t full() const { return barriers + stage * 8; }
  [[nodiscard]] __device__ uint32_t empty() const { return barriers + (kMaxStages + stage) * 8; }
};

}  // namespace warprow::cuda
