// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/compute_pool.h"

#include "base/alloc_counter.h"
#include "base/check.h"
#include "base/log.h"
#include "device/cpu/spin.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sched.h>
#include <utility>

namespace warprow::cpu {
namespace {

// How long a worker spins for the next call before it sleeps. The kernels of a decode step follow each other within
// a few microseconds, steps within some tens.
constexpr int32_t kPoolSpins = 4000;

}  // namespace

ComputePool::ComputePool(int32_t num_workers, std::vector<int32_t> cores)
    : num_workers_(num_workers), cores_(std::move(cores)) {
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

// Pins the calling thread to the worker's core. If the system refuses, the thread runs on any core.
void ComputePool::keep_to_core(int32_t worker) const {
  if (cores_.empty()) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cores_[static_cast<size_t>(worker) % cores_.size()]), &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    WR_LOG_WARN("thread {} of the compute pool is not pinned: {}", worker, std::strerror(errno));
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
  if (!caller_kept_) {
    keep_to_core(0);
    caller_kept_ = true;
  }
  if (threads_.empty() || n <= grain) {
    body(0, n, 0);
    return;
  }
  body_ = &body;
  n_ = n;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  left_.store(0, std::memory_order_relaxed);
  door_.store(0, std::memory_order_release);  // publishes the call
  epoch_.fetch_add(1);                        // seq_cst pairs with a worker that is about to sleep
  if (sleepers_.load() > 0) {
    epoch_.notify_all();
  }
  run_pieces(0);
  // No items are left to take: wait only for the workers that are inside.
  const uint32_t inside = door_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (int32_t spins = 0; left_.load(std::memory_order_acquire) != inside; ++spins) {
    spin_or_yield(spins);
  }
}

// Joins the current call unless it is closed.
bool ComputePool::go_in() {
  uint32_t inside = door_.load(std::memory_order_relaxed);
  while ((inside & kClosed) == 0) {
    if (door_.compare_exchange_weak(
            inside, inside + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ComputePool::worker_main(int32_t worker) {
  const CountAllocations count;
  keep_to_core(worker);
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = epoch_.load();
    for (int32_t spins = 0; now == seen && spins < kPoolSpins; ++spins) {
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
    if (go_in()) {
      run_pieces(worker);
      left_.fetch_add(1, std::memory_order_release);
    }
  }
}

}  // namespace warprow::cpu
