// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cpu/compute_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace warprow::cpu {

// Which piece a worker takes next: those of its own share of the items in order, then those of the others' shares.
//
// Owns: nothing.
// Thread: all workers of one parallel_for.
// Invariant: as many calls of take() as there are pieces yield each piece once.
class WorkerShares {
 public:
  WorkerShares(int64_t num_pieces, int32_t num_workers)
      : num_shares_(std::min(num_workers, kMaxShares)) {
    for (int32_t s = 0; s < num_shares_; ++s) {
      shares_[s].next = num_pieces * s / num_shares_;
      shares_[s].end = num_pieces * (s + 1) / num_shares_;
    }
  }

  int64_t take(int32_t worker) {
    for (int32_t s = worker % num_shares_;; s = (s + 1) % num_shares_) {
      Share& share = shares_[s];
      const std::atomic_ref<int64_t> next(share.next);
      if (next.load(std::memory_order_relaxed) < share.end) {
        const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
        if (piece < share.end) {
          return piece;
        }
      }
    }
  }

 private:
  static constexpr int32_t kMaxShares = 64;
  struct alignas(64) Share {
    int64_t next;
    int64_t end;
  };
  int32_t num_shares_;
  Share shares_[kMaxShares];  // the first num_shares_ are initialised
};

// ComputePool::parallel_for where each worker begins with a share of its own, in order, and then takes from the other
// shares. So operations one after the other over the same rows mostly find them in a core's own cache. from_last: the
// items are those of the last rows first.
template <typename F>
void parallel_for_with_affinity(
    ComputePool& pool, int64_t n, int64_t grain, const F& f, bool from_last = false) {
  const int64_t num_pieces = ceil_div(n, grain);
  WorkerShares shares(num_pieces, pool.num_workers());
  const int32_t last_worker = pool.num_workers() - 1;
  pool.parallel_for(num_pieces, 1, [&](int64_t begin, int64_t end, int32_t worker) {
    for (; begin < end; ++begin) {
      const int64_t first = shares.take(from_last ? last_worker - worker : worker) * grain;
      f(first, std::min(first + grain, n), worker);
    }
  });
}

}  // namespace warprow::cpu
