// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/compute_pool.h"

#include "base/alloc_counter.h"
#include "base/check.h"
#include "device/cpu/spin.h"

#include <algorithm>

namespace warprow::cpu {
namespace {

// How long a worker looks for the next call before it sleeps. A decode step's kernels follow each
// other within a few microseconds, a step within some tens.
constexpr int32_t kSpins = 4000;

}  // namespace

ComputePool::ComputePool(int32_t num_workers) : num_workers_(num_workers) {
  WR_CHECK_GE(num_workers, 1);
  for (int32_t worker = 1; worker < num_workers; ++worker) {
    threads_.emplace_back([this, worker] { worker_main(worker); });
  }
}

ComputePool::~ComputePool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ComputePool::run_pieces(int32_t worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= n_) {
      return;
    }
    (*body_)(begin, std::min(begin + grain_, n_), worker);
  }
}

void ComputePool::parallel_for(int64_t n, int64_t grain, Body body) {
  WR_DCHECK(grain >= 1);
  if (n <= 0) {
    return;
  }
  if (threads_.empty() || n <= grain) {
    body(0, n, 0);
    return;
  }
  body_ = &body;
  n_ = n;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  active_.store(num_workers_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1);  // publishes the call; seq_cst pairs with a worker's way to sleep
  if (sleepers_.load() > 0) {
    epoch_.notify_all();
  }
  run_pieces(0);
  // Every worker checks in, also one that found nothing left: after that none touches this call's
  // fields.
  for (int32_t spins = 0; active_.load(std::memory_order_acquire) != 0; ++spins) {
    spin_or_yield(spins);
  }
}

void ComputePool::worker_main(int32_t worker) {
  const CountAllocations count;
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = epoch_.load();
    for (int32_t spins = 0; now == seen && spins < kSpins; ++spins) {
      cpu_relax();
      now = epoch_.load();
    }
    if (now == seen) {
      sleepers_.fetch_add(1);
      epoch_.wait(seen);
      sleepers_.fetch_sub(1);
      continue;
    }
    seen = now;
    if (stop_.load()) {
      return;
    }
    run_pieces(worker);
    active_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace warprow::cpu
