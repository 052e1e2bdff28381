// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cuda.h>

// TMA (sm_90a): loads of a box of a tensor into shared memory, whose bytes count on the mbarrier, and stores from there.
namespace warprow::cuda {

// True in one of the warp's threads, always the same. All threads call it. The compiler knows that it is one thread.
__device__ __forceinline__ bool elect_one() {
  uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(chosen));
  return chosen != 0;
}
__device__ __forceinline__ void fetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// L2 policy for data that is read once.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// L2 policy for data that several CTAs read about the same time.
__device__ __forceinline__ uint64_t read_again() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void tma_load_2d(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1)
      : "memory");
}
__device__ __forceinline__ void tma_load_2d(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1),
      "l"(policy)
      : "memory");
}
// Into the shared memory of all CTAs of the cluster in `ctas`, at the same offsets: box and mbarrier.
__device__ __forceinline__ void tma_load_2d_to_cluster(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
      "multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1),
      "h"(ctas)
      : "memory");
}
// The same with three coordinates, of which the first is 0.
__device__ __forceinline__ void tma_load_3d_to_cluster(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c1, int c2, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes."
      "multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(0),
      "r"(c1),
      "r"(c2),
      "h"(ctas)
      : "memory");
}
__device__ __forceinline__ void tma_load_3d(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1),
      "r"(c2)
      : "memory");
}
__device__ __forceinline__ void tma_load_3d(uint32_t to,
                                            const CUtensorMap& map,
                                            uint32_t barrier,
                                            int c0,
                                            int c1,
                                            int c2,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1),
      "r"(c2),
      "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_load_4d(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1),
      "r"(c2),
      "r"(c3)
      : "memory");
}
__device__ __forceinline__ void tma_load_4d(uint32_t to,
                                            const CUtensorMap& map,
                                            uint32_t barrier,
                                            int c0,
                                            int c1,
                                            int c2,
                                            int c3,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(c0),
      "r"(c1),
      "r"(c2),
      "r"(c3),
      "l"(policy)
      : "memory");
}
// At coordinates {0, c1, 0, c3, c4}.
__device__ __forceinline__ void tma_load_5d(uint32_t to,
                                            const CUtensorMap& map,
                                            uint32_t barrier,
                                            int c1,
                                            int c3,
                                            int c4,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %3, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map),
      "r"(barrier),
      "r"(0),
      "r"(c1),
      "r"(c3),
      "r"(c4),
      "l"(policy)
      : "memory");
}

// Copies bytes that lie together; a multiple of 16, as both addresses.
__device__ __forceinline__ void bulk_load(
    uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from),
      "r"(bytes),
      "r"(barrier),
      "l"(policy)
      : "memory");
}

// Stores a box. What lies beyond the tensor's ends is not written. The thread's stores since the last tma_store_commit
// are one group.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap& map,
                                             uint32_t from,
                                             int c0,
                                             int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(from),
      "r"(c0),
      "r"(c1)
      : "memory");
}
// The same, added to the tensor's float32 values: each is rounded once, and subnormal results become zero.
__device__ __forceinline__ void tma_add_2d(const CUtensorMap& map, uint32_t from, int c0, int c1) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::
          "l"(&map),
      "r"(from),
      "r"(c0),
      "r"(c1)
      : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the thread's last kPending groups of stores have read shared memory.
template <int kPending = 0>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until the thread's stores are complete.
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace warprow::cuda
