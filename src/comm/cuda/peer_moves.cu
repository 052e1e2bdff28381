// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "comm/cuda/peer_kernels.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/peer_group.cuh"

#include <algorithm>
#include <span>

// Formula, preconditions: peer_kernels.h.
// Mapping: bytes are counted row by row and cut into chunks of kMoveChunk. Chunk c of a direction belongs to block
//   c % kMoveBlocks on both sides. The sender writes it into the next slot of the receiver's region, which must have been
//   taken; the receiver copies it out.
// Bytes moved: once between GPUs, once in the receiver.
// Numerics: bytes are copied.
namespace warprow::cuda {
namespace {

// Whether rows can be accessed 16 bytes at a time.
__device__ __forceinline__ bool is_wide(const PeerRows& rows) {
  return ((reinterpret_cast<uint64_t>(rows.at) | static_cast<uint64_t>(rows.row_bytes) |
           static_cast<uint64_t>(rows.stride)) &
          15U) == 0;
}

// Calls f(place of a unit in the rows, its number in the chunk) for this thread's units of bytes [first, first + bytes).
template <typename Unit, typename F>
__device__ __forceinline__ void for_units(const PeerRows& rows,
                                          int64_t first,
                                          int64_t bytes,
                                          const F& f) {
  const auto units = static_cast<int32_t>(bytes / static_cast<int64_t>(sizeof(Unit)));
  const bool adjacent = rows.row_bytes == rows.stride || rows.row_bytes == rows.bytes;
  for (int32_t u = static_cast<int32_t>(threadIdx.x); u < units; u += kMoveThreads) {
    int64_t at = first + int64_t{u} * static_cast<int64_t>(sizeof(Unit));
    if (!adjacent) {
      const int64_t row = at / rows.row_bytes;
      at += row * (rows.stride - rows.row_bytes);
    }
    f(reinterpret_cast<Unit*>(rows.at + at), u);
  }
}

__device__ __forceinline__ std::byte* slot_of(const PeerGroup& g,
                                              int32_t to,
                                              int32_t from,
                                              uint32_t count) {
  const int64_t slots = g.layout.move_slots;
  const int64_t slot = (int64_t{from} * kMoveBlocks + blockIdx.x) * slots +
                       (count & static_cast<uint32_t>(slots - 1));
  return g.regions[to] + g.layout.moves + slot * kMoveChunk;
}

// The number of a direction's next chunk, once `reached` is at most `ahead` chunks behind. Advances the counter.
struct Next {
  uint32_t count;
  bool alive;  // false: the group was aborted
};
__device__ __forceinline__ Next next_chunk(const PeerGroup& g,
                                           uint32_t* counter,
                                           const uint32_t* reached,
                                           uint32_t ahead) {
  __shared__ Next next;
  if (threadIdx.x == 0) {
    const uint32_t count = *counter + 1;
    next = {count, wait_reached(g, reached, count - ahead)};
    *counter = count;
  }
  __syncthreads();
  const Next mine = next;
  __syncthreads();  // all have read it
  return mine;
}

__device__ __forceinline__ bool send_chunk(const PeerGroup& g,
                                           const PeerRows& rows,
                                           int64_t first) {
  PeerWords& mine = words_of(g, g.rank);
  const Next next = next_chunk(g,
                               &mine.num_sent[rows.peer][blockIdx.x],
                               &mine.taken[rows.peer][blockIdx.x],
                               static_cast<uint32_t>(g.layout.move_slots));
  if (!next.alive) {
    return false;
  }
  std::byte* const slot = slot_of(g, rows.peer, g.rank, next.count);
  const int64_t bytes = min(kMoveChunk, rows.bytes - first);
  if (is_wide(rows)) {
    for_units<uint4>(rows, first, bytes, [slot](const uint4* from, int32_t u) {
      reinterpret_cast<uint4*>(slot)[u] = *from;
    });
  } else {
    for_units<uint32_t>(rows, first, bytes, [slot](const uint32_t* from, int32_t u) {
      reinterpret_cast<uint32_t*>(slot)[u] = *from;
    });
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    store_release(&words_of(g, rows.peer).sent[g.rank][blockIdx.x], next.count);
  }
  return true;
}

__device__ __forceinline__ bool receive_chunk(const PeerGroup& g,
                                              const PeerRows& rows,
                                              int64_t first) {
  PeerWords& mine = words_of(g, g.rank);
  const Next next =
      next_chunk(g, &mine.num_taken[rows.peer][blockIdx.x], &mine.sent[rows.peer][blockIdx.x], 0);
  if (!next.alive) {
    return false;
  }
  const std::byte* const slot = slot_of(g, g.rank, rows.peer, next.count);
  const int64_t bytes = min(kMoveChunk, rows.bytes - first);
  if (is_wide(rows)) {
    for_units<uint4>(rows, first, bytes, [slot](uint4* to, int32_t u) {
      *to = load_peer(reinterpret_cast<const uint4*>(slot) + u);
    });
  } else {
    for_units<uint32_t>(rows, first, bytes, [slot](uint32_t* to, int32_t u) {
      *to = load_peer(reinterpret_cast<const uint32_t*>(slot) + u);
    });
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    store_release(&words_of(g, rows.peer).taken[g.rank][blockIdx.x], next.count);
  }
  return true;
}

// Rows that stay on this rank, chunk by chunk as well.
__device__ __forceinline__ void copy_own(const PeerRows& from, const PeerRows& to, int64_t first) {
  const int64_t bytes = min(kMoveChunk, from.bytes - first);
  const auto copy = [&]<typename Unit>(Unit /*unit*/) {
    for_units<Unit>(from, first, bytes, [&](const Unit* at, int32_t u) {
      int64_t out = first + int64_t{u} * static_cast<int64_t>(sizeof(Unit));
      out += out / to.row_bytes * (to.stride - to.row_bytes);
      *reinterpret_cast<Unit*>(to.at + out) = *at;
    });
  };
  if (is_wide(from) && is_wide(to)) {
    copy(uint4{});
  } else {
    copy(uint32_t{});
  }
}

__global__ void __launch_bounds__(kMoveThreads) move_rows(const __grid_constant__ PeerGroup g,
                                                          const __grid_constant__ PeerMoves m) {
  pdl_wait();
  pdl_release();
  bool some = true;
  for (int64_t chunk = blockIdx.x; some; chunk += kMoveBlocks) {
    const int64_t first = chunk * kMoveChunk;
    some = false;
    for (int32_t i = 0; i < m.num_out; ++i) {
      if (first < m.out[i].bytes) {
        some = true;
        if (!send_chunk(g, m.out[i], first)) {
          return;
        }
      }
    }
    if (first < m.own.bytes) {
      some = true;
      copy_own(m.own, m.own_to, first);
    }
    for (int32_t i = 0; i < m.num_in; ++i) {
      if (first < m.in[i].bytes) {
        some = true;
        if (!receive_chunk(g, m.in[i], first)) {
          return;
        }
      }
    }
  }
}

}  // namespace

void move_between_peers(Stream& stream, const PeerGroup& group, const PeerMoves& moves) {
  int64_t most = moves.own.bytes;
  const auto check = [&most](const PeerRows& rows) {
    most = std::max(most, rows.bytes);
    const auto odd = reinterpret_cast<uintptr_t>(rows.at) | static_cast<uintptr_t>(rows.row_bytes) |
                     static_cast<uintptr_t>(rows.stride) | static_cast<uintptr_t>(rows.bytes);
    WR_CHECK(odd % 4 == 0, "rows of {} bytes, {} apart, are no words", rows.row_bytes, rows.stride);
  };
  std::ranges::for_each(std::span(moves.out).first(static_cast<size_t>(moves.num_out)), check);
  std::ranges::for_each(std::span(moves.in).first(static_cast<size_t>(moves.num_in)), check);
  check(moves.own);
  if (most == 0) {
    return;
  }
  const auto grid =
      static_cast<unsigned>(std::min<int64_t>(kMoveBlocks, ceil_div(most, kMoveChunk)));
  launch(stream, "move_rows", {grid, kMoveThreads}, move_rows, group, moves);
}

}  // namespace warprow::cuda
