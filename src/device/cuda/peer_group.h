// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// The memory through which GPUs of one host exchange data inside kernels. Each rank has a region on its GPU, which the
// others write into over NVLink. Regions start as zeros. Offsets are the same on every rank.
//
// A kernel's blocks exchange with the blocks of the same number on the other ranks and with no others, so no operation
// needs a barrier of a whole grid. What varies from run to run of a recorded kernel, its sequence numbers, lies in the region.

inline constexpr int32_t kMaxPeers = 8;

// Small sums: a value travels with the sequence number beside it, so that data and its arrival are one store.
inline constexpr int32_t kSmallThreads = 512;
inline constexpr int32_t kSmallBlocks = 128;
inline constexpr int64_t kSmallChunk = 4 * kSmallThreads;          // values of a block at a time
inline constexpr int64_t kMostSmall = kSmallBlocks * kSmallChunk;  // values in one round
inline constexpr int64_t kPacketBytes = 16;                        // two values, two numbers
inline constexpr int64_t kSmallSlot =
    kSmallThreads * 2 * kPacketBytes;  // bytes of a block from a rank

// Large sums: values, then one flag for a block's chunk.
inline constexpr int32_t kLargeThreads = 512;
inline constexpr int32_t kLargeBlocks = 128;
inline constexpr int64_t kLargeChunk = 8192;  // values of a block at a time, at most
inline constexpr int64_t kLargeSlot = kLargeChunk * static_cast<int64_t>(sizeof(float));

// Moves from one rank to another: chunks in slots used in turn, and how many were sent and taken.
inline constexpr int32_t kMoveThreads = 512;
inline constexpr int32_t kMoveBlocks = 128;
inline constexpr int64_t kMoveChunk = 16 << 10;  // bytes

// The start of a region.
struct PeerWords {
  // Of this rank's kernels alone.
  uint32_t small_seq[kSmallBlocks];
  uint32_t large_seq[kLargeBlocks];
  uint32_t num_sent[kMaxPeers][kMoveBlocks];   // chunks to a rank
  uint32_t num_taken[kMaxPeers][kMoveBlocks];  // chunks from a rank
  // Written by the other ranks.
  uint32_t arrived[2][kMaxPeers][kLargeBlocks];  // by phase of a large sum: the sequence number
  uint32_t sent[kMaxPeers][kMoveBlocks];         // chunks that a rank has put into this region
  uint32_t taken[kMaxPeers][kMoveBlocks];        // chunks of this rank that another has taken
};

// What a group's regions have room for.
struct PeerSizes {
  bool sums = true;
  int32_t move_slots = 4;  // of each block and direction; a power of two
};

// Where the parts of a region begin, in bytes.
struct PeerLayout {
  int64_t small = 0;  // [kSmallBlocks, 2, size, kSmallSlot]
  int64_t large =
      0;  // [kLargeBlocks, 2, 2, size, kLargeSlot / 2, which holds a share]; of two [kLargeBlocks, 4, kLargeSlot]
  int64_t moves = 0;  // [size, kMoveBlocks, move_slots, kMoveChunk]
  int64_t bytes = 0;
  int32_t move_slots = 0;

  constexpr PeerLayout() = default;
  constexpr PeerLayout(int32_t size, const PeerSizes& sizes) : move_slots(sizes.move_slots) {
    bytes = align(static_cast<int64_t>(sizeof(PeerWords)));
    small = bytes;
    if (sizes.sums) {
      bytes += kSmallBlocks * 2 * size * kSmallSlot;
    }
    large = bytes;
    if (sizes.sums) {
      bytes += kLargeBlocks * 2 * 2 * size * (kLargeSlot / 2);
    }
    moves = bytes;
    bytes += int64_t{size} * kMoveBlocks * sizes.move_slots * kMoveChunk;
  }

 private:
  static constexpr int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }
};

// A group as the kernels of one rank get it.
struct PeerGroup {
  std::byte* regions[kMaxPeers] = {};  // by rank, as this GPU sees them
  const uint32_t* abort = nullptr;     // in host memory; not 0: all waits end
  int32_t rank = 0;
  int32_t size = 1;
  PeerLayout layout;
};

}  // namespace warprow::cuda
