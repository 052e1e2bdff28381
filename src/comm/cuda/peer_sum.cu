// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "comm/cuda/peer_kernels.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/peer_group.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/half_norm.cuh"

#include <algorithm>

// Formula: peer_kernels.h.
// Mapping: small: a thread takes four values at a time; they go to every other rank at once, each with the sequence
//   number, and the thread waits for those of the others. Large: a block takes up to kLargeChunk values at a time. Two ranks
//   send each other all of them, and the next ones before they wait. More ranks sum a share each, and send its sum to the
//   others.
// Bytes moved between GPUs, each way: small: 8 * n * (ranks - 1). Large: 4 * n with two ranks, 8 * n * (ranks - 1) / ranks
//   with more.
// Numerics: ((v0 + v1) + v2) + ... in float32, in both.
namespace warprow::cuda {
namespace {

constexpr int64_t kMostNormed = int64_t{1} << 32;  // values: their index has 32 bits

struct Sum {
  float* values = nullptr;
  float* add_to = nullptr;
  int64_t n = 0;
  bool aligned = false;  // n and addresses allow four values at a time
  // The first half of the next norm, if its weight is not null.
  const float* weight = nullptr;  // [width]
  uint2* rows = nullptr;          // bf16 [n]
  float* squares = nullptr;
  int32_t width = 0;
  bool quartered = false;
  int32_t chunk = 0;  // of a large sum: values of a block at a time
};

__device__ __forceinline__ void load4(const Sum& a, int64_t i, float (&v)[4]) {
  if (a.aligned && i < a.n) {
    const float4 all = *reinterpret_cast<const float4*>(a.values + i);
    v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    v[k] = i + k < a.n ? a.values[i + k] : 0.0F;
  }
}

__device__ __forceinline__ float4& at4(float* values, int64_t i) {
  return *reinterpret_cast<float4*>(values + i);
}

// The weights of the next norm for four values; undefined without it. They do not change, so a kernel may load them before
// the one in front of it has ended.
__device__ __forceinline__ float4 weights_at(const Sum& a, int64_t i) {
  if (a.weight == nullptr) {
    return {};
  }
  const auto column = static_cast<uint32_t>(i) % static_cast<uint32_t>(a.width);
  return __ldg(reinterpret_cast<const float4*>(a.weight + column));
}
// What add_to has there; undefined without it.
__device__ __forceinline__ float4 before_at(const Sum& a, int64_t i) {
  return a.add_to != nullptr ? at4(a.add_to, i) : float4{};
}

// With a norm, 16 lanes with 64 adjacent columns of a row call it together.
__device__ __forceinline__ void finish4(
    const Sum& a, int64_t i, const float4& sum, const float4& before, const float4& weights) {
  const bool adds = a.add_to != nullptr;
  const float4 out = adds ? sum_of(before, sum) : sum;
  at4(adds ? a.add_to : a.values, i) = out;
  if (a.weight != nullptr) {
    const float4 x = weighted(out, weights);
    a.rows[i / 4] = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)};
    leave_squares(a.squares, i / 64, out, 0xffffU << (threadIdx.x & 16U), a.quartered);
  }
}

// Any values at any address.
__device__ __forceinline__ void store_each(const Sum& a, int64_t i, const float (&v)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (i + k < a.n) {
      if (a.add_to != nullptr) {
        a.add_to[i + k] = __fadd_rn(a.add_to[i + k], v[k]);
      } else {
        a.values[i + k] = v[k];
      }
    }
  }
}

__global__ void __launch_bounds__(kSmallThreads) sum_small(const __grid_constant__ PeerGroup g,
                                                           Sum a) {
  int64_t i = int64_t{blockIdx.x} * kSmallChunk + int64_t{threadIdx.x} * 4;
  float4 weights = i < a.n ? weights_at(a, i) : float4{};
  pdl_wait();
  pdl_release();
  uint32_t* const seq_at = &words_of(g, g.rank).small_seq[blockIdx.x];
  uint32_t seq = *seq_at;
  const int64_t step = gridDim.x * kSmallChunk;
  // A slot that one block uses twice must have been read by the same thread of the other rank, so every thread takes
  // part then, with or without values.
  const bool all_threads = a.n > step;
  bool alive = true;
  for (int64_t first = blockIdx.x * kSmallChunk; first < a.n; first += step, i += step) {
    ++seq;
    if (i < a.n || all_threads) {
      float v[4];
      load4(a, i, v);
      const bool whole = a.aligned && i < a.n;
      const float4 before = whole ? before_at(a, i) : float4{};
      sum_packets(g, v, seq, alive);
      if (whole) {
        finish4(a, i, {v[0], v[1], v[2], v[3]}, before, weights);
      } else {
        store_each(a, i, v);
      }
    }
    weights = i + step < a.n ? weights_at(a, i + step) : float4{};
  }
  __syncthreads();  // all have read the number
  if (threadIdx.x == 0) {
    *seq_at = seq;
  }
}

// Tells the other ranks' blocks that this block's data has arrived there.
__device__ __forceinline__ void tell_all(const PeerGroup& g, int phase, uint32_t seq) {
  __syncthreads();
  const auto to = static_cast<int32_t>(threadIdx.x);
  if (to < g.size && to != g.rank) {
    store_release(&words_of(g, to).arrived[phase][g.rank][blockIdx.x], seq);
  }
}

// False: the group was aborted.
__device__ __forceinline__ bool wait_for_all(const PeerGroup& g, int phase, uint32_t seq) {
  const auto from = static_cast<int32_t>(threadIdx.x);
  bool here = true;
  if (from < g.size && from != g.rank) {
    here = wait_reached(g, &words_of(g, g.rank).arrived[phase][from][blockIdx.x], seq);
  }
  return __syncthreads_and(here ? 1 : 0) != 0;
}

// Where a block's values from rank `from` lie in the region of `to`, in units of four values.
__device__ __forceinline__ uint4* large_slot(
    const PeerGroup& g, int32_t to, int phase, int32_t from, uint32_t seq) {
  const int64_t slot = (int64_t{blockIdx.x} * 2 + (seq & 1U)) * 2 + phase;
  return reinterpret_cast<uint4*>(g.regions[to] + g.layout.large +
                                  (slot * g.size + from) * (kLargeSlot / 2));
}

__device__ __forceinline__ float4 as_float4(const uint4& v) {
  return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}
__device__ __forceinline__ uint4 as_uint4(const float4& v) {
  return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
}

__device__ __forceinline__ int32_t units_of(const Sum& a, int64_t first) {
  return static_cast<int32_t>(min(int64_t{a.chunk}, a.n - first) / 4);
}

// Two ranks. What a thread keeps of a chunk until the other rank's values are here.
constexpr int kHeld = kLargeChunk / 4 / kLargeThreads;
struct Held {
  float4 mine[kHeld];
  float4 before[kHeld];
};

// A chunk takes a quarter of the block's part of the region. A slot is written again four chunks later: by then the other
// rank has signalled the chunk two before that (tell_all), behind a barrier after it read the slot.
__device__ __forceinline__ uint4* pair_slot(const PeerGroup& g, int32_t to, uint32_t seq) {
  return reinterpret_cast<uint4*>(g.regions[to] + g.layout.large +
                                  (int64_t{blockIdx.x} * 4 + (seq & 3U)) * kLargeSlot);
}

__device__ __forceinline__ void send_to_other(
    const PeerGroup& g, const Sum& a, int64_t first, uint32_t seq, Held& held) {
  const int32_t units = units_of(a, first);
  uint4* const to = pair_slot(g, 1 - g.rank, seq);
  const auto me = static_cast<int32_t>(threadIdx.x);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int32_t u = me + j * kLargeThreads;
    if (u < units) {
      held.mine[j] = at4(a.values, first + int64_t{u} * 4);
    }
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int32_t u = me + j * kLargeThreads;
    if (u < units) {
      to[u] = as_uint4(held.mine[j]);
    }
  }
  tell_all(g, 0, seq);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int32_t u = me + j * kLargeThreads;
    if (u < units) {
      held.before[j] = before_at(a, first + int64_t{u} * 4);
    }
  }
}

__device__ __forceinline__ bool sum_with_other(
    const PeerGroup& g, const Sum& a, int64_t first, uint32_t seq, const Held& held) {
  if (!wait_for_all(g, 0, seq)) {
    return false;
  }
  const int32_t units = units_of(a, first);
  const uint4* const from = pair_slot(g, g.rank, seq);
  const auto me = static_cast<int32_t>(threadIdx.x);
  float4 theirs[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int32_t u = me + j * kLargeThreads;
    if (u < units) {
      theirs[j] = as_float4(load_peer(from + u));
    }
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int32_t u = me + j * kLargeThreads;
    if (u < units) {
      const int64_t i = first + int64_t{u} * 4;
      const float4 sum =
          g.rank == 0 ? sum_of(held.mine[j], theirs[j]) : sum_of(theirs[j], held.mine[j]);
      finish4(a, i, sum, held.before[j], weights_at(a, i));
    }
  }
  return true;
}

__global__ void __launch_bounds__(kLargeThreads) sum_pair(const __grid_constant__ PeerGroup g,
                                                          Sum a) {
  pdl_wait();
  pdl_release();
  uint32_t* const seq_at = &words_of(g, g.rank).large_seq[blockIdx.x];
  uint32_t seq = *seq_at + 1;
  int64_t first = int64_t{blockIdx.x} * a.chunk;
  const int64_t step = int64_t{gridDim.x} * a.chunk;
  Held held;
  send_to_other(g, a, first, seq, held);
  for (; first + step < a.n; first += step, ++seq) {
    Held next;
    send_to_other(g, a, first + step, seq + 1, next);
    if (!sum_with_other(g, a, first, seq, held)) {
      return;
    }
    held = next;
  }
  if (sum_with_other(g, a, first, seq, held) && threadIdx.x == 0) {
    *seq_at = seq;
  }
}

__device__ __forceinline__ void finish_there(const Sum& a, int64_t i, const float4& sum) {
  finish4(a, i, sum, before_at(a, i), weights_at(a, i));
}

// Of more ranks each sums a share of the chunk.
__device__ __forceinline__ bool sum_shares(const PeerGroup& g,
                                           const Sum& a,
                                           int64_t first,
                                           uint32_t seq) {
  const int32_t units = units_of(a, first);
  const int32_t most = (units + 16 * g.size - 1) / (16 * g.size) * 16;  // whole sums of 64 columns
  auto* const values = reinterpret_cast<uint4*>(a.values + first);
  const auto begin_of = [&](int32_t rank) { return min(rank * most, units); };
  const auto me = static_cast<int32_t>(threadIdx.x);
  for (int32_t step = 1; step < g.size; ++step) {
    const int32_t rank = (g.rank + step) % g.size;
    uint4* const to = large_slot(g, rank, 0, g.rank, seq);
    const int32_t begin = begin_of(rank);
    for (int32_t u = begin + me; u < begin_of(rank + 1); u += kLargeThreads) {
      to[u - begin] = values[u];
    }
  }
  tell_all(g, 0, seq);
  if (!wait_for_all(g, 0, seq)) {
    return false;
  }
  const int32_t mine = begin_of(g.rank);
  for (int32_t u = mine + me; u < begin_of(g.rank + 1); u += kLargeThreads) {
    float4 sum = {};
    for (int32_t rank = 0; rank < g.size; ++rank) {
      const uint4 part =
          rank == g.rank ? values[u] : load_peer(large_slot(g, g.rank, 0, rank, seq) + (u - mine));
      sum = rank == 0 ? as_float4(part) : sum_of(sum, as_float4(part));
    }
    for (int32_t step = 1; step < g.size; ++step) {
      const int32_t rank = (g.rank + step) % g.size;
      large_slot(g, rank, 1, g.rank, seq)[u - mine] = as_uint4(sum);
    }
    finish_there(a, first + int64_t{u} * 4, sum);
  }
  tell_all(g, 1, seq);
  if (!wait_for_all(g, 1, seq)) {
    return false;
  }
  for (int32_t step = 1; step < g.size; ++step) {
    const int32_t rank = (g.rank + step) % g.size;
    const uint4* const from = large_slot(g, g.rank, 1, rank, seq);
    const int32_t begin = begin_of(rank);
    for (int32_t u = begin + me; u < begin_of(rank + 1); u += kLargeThreads) {
      finish_there(a, first + int64_t{u} * 4, as_float4(load_peer(from + (u - begin))));
    }
  }
  return true;
}

// A slot of a chunk is written again two chunks later: by then the other rank has signalled the chunk between (tell_all),
// behind a barrier after it read the slot.
__global__ void __launch_bounds__(kLargeThreads) sum_in_shares(const __grid_constant__ PeerGroup g,
                                                               Sum a) {
  pdl_wait();
  pdl_release();
  uint32_t* const seq_at = &words_of(g, g.rank).large_seq[blockIdx.x];
  uint32_t seq = *seq_at;
  __syncthreads();  // all have read it
  for (int64_t first = int64_t{blockIdx.x} * a.chunk; first < a.n;
       first += int64_t{gridDim.x} * a.chunk) {
    ++seq;
    if (!sum_shares(g, a, first, seq)) {
      return;
    }
  }
  if (threadIdx.x == 0) {
    *seq_at = seq;
  }
}

}  // namespace

void sum_over_peers(Stream& stream, const PeerGroup& group, const PeerSum& sum) {
  if (sum.n == 0) {
    return;
  }
  const auto is_aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  Sum args;
  args.values = sum.values;
  args.add_to = sum.add_to;
  args.n = sum.n;
  args.aligned = sum.n % 4 == 0 && is_aligned(sum.values) && is_aligned(sum.add_to);
  if (sum.next != nullptr) {
    WR_CHECK(args.aligned && sum.add_to != nullptr && sum.width % 64 == 0 && sum.n < kMostNormed,
             "{} values in rows of {}",
             sum.n,
             sum.width);
    args.weight = sum.next->weight.data;
    args.rows = static_cast<uint2*>(sum.next->rows.data);
    args.squares = sum.next->squares;
    args.width = sum.width;
    args.quartered = sum.n <= kMaxQuarteredRows * sum.width;
  }
  if (args.aligned && sum.n > kMostSmall / (group.size - 1)) {
    const int64_t chunk = std::min(
        kLargeChunk, round_up(ceil_div(sum.n, int64_t{kLargeBlocks}), int64_t{4} * kLargeThreads));
    args.chunk = static_cast<int32_t>(chunk);
    const auto grid =
        static_cast<unsigned>(std::min<int64_t>(kLargeBlocks, ceil_div(sum.n, chunk)));
    if (group.size == 2) {
      launch(stream, "sum_pair", {grid, kLargeThreads}, sum_pair, group, args);
    } else {
      launch(stream, "sum_in_shares", {grid, kLargeThreads}, sum_in_shares, group, args);
    }
    return;
  }
  const auto grid =
      static_cast<unsigned>(std::min<int64_t>(kSmallBlocks, ceil_div(sum.n, kSmallChunk)));
  launch(stream, "sum_small", {grid, kSmallThreads}, sum_small, group, args);
}

}  // namespace warprow::cuda
