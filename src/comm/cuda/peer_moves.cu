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
//   taken; the receiver copies it out. Some blocks send, some receive, and some copy what stays, at the same time.
// Bytes moved: once between GPUs, once in the receiver.
// Numerics: bytes are copied.
namespace warprow::cuda {
namespace {

constexpr int64_t kMostRowBytes = int64_t{1} << 31;  // places in rows have 32 bits

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
  constexpr auto kUnit = static_cast<uint32_t>(sizeof(Unit));
  const auto units = static_cast<uint32_t>(bytes) / kUnit;
  if (rows.row_bytes == rows.stride || rows.row_bytes == rows.bytes) {
    for (uint32_t u = threadIdx.x; u < units; u += kMoveThreads) {
      f(reinterpret_cast<Unit*>(rows.at + first) + u, u);
    }
    return;
  }
  const int64_t row = first / rows.row_bytes;
  const auto width = static_cast<uint32_t>(rows.row_bytes);
  const auto before = static_cast<uint32_t>(first - row * rows.row_bytes);
  std::byte* const begin = rows.at + row * rows.stride;
  for (uint32_t u = threadIdx.x; u < units; u += kMoveThreads) {
    const uint32_t at = before + u * kUnit;
    f(reinterpret_cast<Unit*>(begin + at / width * rows.stride + at % width), u);
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
    for_units<uint4>(rows, first, bytes, [slot](const uint4* from, uint32_t u) {
      reinterpret_cast<uint4*>(slot)[u] = *from;
    });
  } else {
    for_units<uint32_t>(rows, first, bytes, [slot](const uint32_t* from, uint32_t u) {
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
    for_units<uint4>(rows, first, bytes, [slot](uint4* to, uint32_t u) {
      *to = load_peer(reinterpret_cast<const uint4*>(slot) + u);
    });
  } else {
    for_units<uint32_t>(rows, first, bytes, [slot](uint32_t* to, uint32_t u) {
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
    for_units<Unit>(from, first, bytes, [&](const Unit* at, uint32_t u) {
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

// What a block does with every kMoveBlocks-th chunk.
enum class Role : uint32_t { kSend, kReceive, kCopy };

__device__ __forceinline__ Role role_of(const PeerMoves& m) {
  uint32_t nth = blockIdx.y;
  if (m.num_out == 0) {
    ++nth;
  }
  if (nth > 0 && m.num_in == 0) {
    ++nth;
  }
  return Role{nth};
}

// The roles wait for other ranks but not for each other.
__global__ void __launch_bounds__(kMoveThreads, 2) move_rows(const __grid_constant__ PeerGroup g,
                                                             const __grid_constant__ PeerMoves m) {
  pdl_wait();
  pdl_release();
  const Role role = role_of(m);
  if (role == Role::kCopy) {
    for (int64_t first = blockIdx.x * kMoveChunk; first < m.own.bytes;
         first += kMoveBlocks * kMoveChunk) {
      copy_own(m.own, m.own_to, first);
    }
    return;
  }
  const bool sends = role == Role::kSend;
  const PeerRows* const all = sends ? m.out : m.in;
  const int32_t count = sends ? m.num_out : m.num_in;
  bool some = true;
  for (int64_t first = blockIdx.x * kMoveChunk; some; first += kMoveBlocks * kMoveChunk) {
    some = false;
    for (int32_t i = 0; i < count; ++i) {
      if (first < all[i].bytes) {
        some = true;
        if (!(sends ? send_chunk(g, all[i], first) : receive_chunk(g, all[i], first))) {
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
    WR_CHECK(rows.row_bytes == rows.bytes || rows.row_bytes < kMostRowBytes,
             "rows of {} bytes",
             rows.row_bytes);
  };
  std::ranges::for_each(std::span(moves.out).first(static_cast<size_t>(moves.num_out)), check);
  std::ranges::for_each(std::span(moves.in).first(static_cast<size_t>(moves.num_in)), check);
  check(moves.own);
  if (most == 0) {
    return;
  }
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(kMoveBlocks, ceil_div(most, kMoveChunk)));
  const auto roles = static_cast<unsigned>(moves.num_out > 0) +
                     static_cast<unsigned>(moves.num_in > 0) +
                     static_cast<unsigned>(moves.own.bytes > 0);
  launch(stream, "move_rows", {dim3(blocks, roles), kMoveThreads}, move_rows, group, moves);
}

}  // namespace warprow::cuda
