// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/peer_group.h"

// What kernels of several GPUs do with each other's regions.
namespace warprow::cuda {

__device__ __forceinline__ PeerWords& words_of(const PeerGroup& g, int32_t rank) {
  return *reinterpret_cast<PeerWords*>(g.regions[rank]);
}

__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* at) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}
// What this thread and, behind a barrier of the block, its other threads did before is visible to a thread that loads the
// value with load_acquire.
__device__ __forceinline__ void store_release(uint32_t* at, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
// What was done before the value was stored is visible to this thread and, behind a barrier of the block, to its other
// threads. Unlike a fence it does not wait for this block's own stores.
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* at) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}

// Reads past the first-level cache, which does not see what other GPUs write.
__device__ __forceinline__ uint4 load_peer(const uint4* at) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_peer(const uint32_t* at) { return load_relaxed(at); }

// How often a wait looks at the abort flag, which lies in host memory.
inline constexpr uint32_t kPollsPerLook = 2048;

__device__ __forceinline__ bool is_aborted(const PeerGroup& g) {
  return load_relaxed(g.abort) != 0;
}

// Waits until a counter has reached `count`. False: the group was aborted.
__device__ __forceinline__ bool wait_reached(const PeerGroup& g,
                                             const uint32_t* counter,
                                             uint32_t count) {
  for (uint32_t polls = 1; static_cast<int32_t>(load_relaxed(counter) - count) < 0; ++polls) {
    if (polls % kPollsPerLook == 0 && is_aborted(g)) {
      return false;
    }
  }
  load_acquire(counter);
  return true;
}

// Two values with the sequence number of their sum beside each. The halves of 8 bytes are each stored and loaded whole.
struct Packet {
  float a;
  float b;
};

// Where packet `i` of 2 of this thread lies: in the region of rank `to`, from rank `from`.
__device__ __forceinline__ uint64_t* packet_at(
    const PeerGroup& g, int32_t to, int32_t from, uint32_t seq, int32_t i) {
  std::byte* const slot =
      g.regions[to] + g.layout.small +
      ((static_cast<int64_t>(blockIdx.x) * 2 + (seq & 1U)) * g.size + from) * kSmallSlot;
  return reinterpret_cast<uint64_t*>(
      slot + (int64_t{i} * kSmallThreads + static_cast<int32_t>(threadIdx.x)) * kPacketBytes);
}

__device__ __forceinline__ uint64_t marked(float v, uint32_t seq) {
  return uint64_t{seq} << 32 | __float_as_uint(v);
}

__device__ __forceinline__ void send_packet(uint64_t* at, const Packet& p, uint32_t seq) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at),
               "l"(marked(p.a, seq)),
               "l"(marked(p.b, seq))
               : "memory");
}

// Waits for the packet with this number. `alive` becomes false, and the packet is undefined, if the group was aborted.
__device__ __forceinline__ Packet receive_packet(const PeerGroup& g,
                                                 const uint64_t* at,
                                                 uint32_t seq,
                                                 bool& alive) {
  uint64_t low = 0;
  uint64_t high = 0;
  for (uint32_t polls = 1; alive; ++polls) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(low), "=l"(high)
                 : "l"(at)
                 : "memory");
    if (static_cast<uint32_t>(low >> 32) == seq && static_cast<uint32_t>(high >> 32) == seq) {
      break;
    }
    if (polls % kPollsPerLook == 0 && is_aborted(g)) {
      alive = false;
    }
  }
  return {__uint_as_float(static_cast<uint32_t>(low)),
          __uint_as_float(static_cast<uint32_t>(high))};
}

// The sum over ranks, in rank order, of four values that each rank has in this thread. All ranks' blocks with this
// number call it with the same `seq`, one more than in the block's last call; within a kernel every thread takes part
// in all calls or in the first alone.
__device__ __forceinline__ void sum_packets(const PeerGroup& g,
                                            float (&v)[4],
                                            uint32_t seq,
                                            bool& alive) {
  for (int32_t step = 1; step < g.size; ++step) {
    const int32_t to = (g.rank + step) % g.size;
    send_packet(packet_at(g, to, g.rank, seq, 0), {v[0], v[1]}, seq);
    send_packet(packet_at(g, to, g.rank, seq, 1), {v[2], v[3]}, seq);
  }
  const float own[4] = {v[0], v[1], v[2], v[3]};
  for (int32_t rank = 0; rank < g.size; ++rank) {
    Packet low{own[0], own[1]};
    Packet high{own[2], own[3]};
    if (rank != g.rank) {
      low = receive_packet(g, packet_at(g, g.rank, rank, seq, 0), seq, alive);
      high = receive_packet(g, packet_at(g, g.rank, rank, seq, 1), seq, alive);
    }
    const float got[4] = {low.a, low.b, high.a, high.b};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = rank == 0 ? got[i] : __fadd_rn(v[i], got[i]);
    }
  }
}

}  // namespace warprow::cuda
