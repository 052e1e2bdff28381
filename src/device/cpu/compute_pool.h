// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace warprow::cpu {

// A reference to a callable, for parameters that do not outlive the call. Never allocates.
template <typename Signature>
class FunctionRef;
template <typename R, typename... A>
class FunctionRef<R(A...)> {
 public:
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* o, A... a) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(o))(a...);
        }) {}
  R operator()(A... a) const { return call_(object_, a...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

// The threads that run the inside of a CPU kernel. The caller is worker 0 and takes part.
//
// Owns: num_workers - 1 threads.
// Thread: one caller at a time (the stream's thread).
// Invariant: parallel_for returns when every item has run. It does not wait for a worker that comes late because
// its core was taken: the others have done its share. Workers spin briefly between calls and then sleep, so idling
// costs nothing.
class ComputePool {
 public:
  // cores: worker i is pinned to cores[i % size], the caller from its first call on. Empty: no pinning.
  explicit ComputePool(int32_t num_workers, std::vector<int32_t> cores = {});
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  [[nodiscard]] int32_t num_workers() const { return num_workers_; }

  // Runs f(begin, end, worker) over [0, n) in pieces of `grain` items (the last may be shorter); each free worker
  // takes the next piece. `worker` < num_workers() names a scratch slot. What an item computes must not depend on
  // its piece.
  using Body = FunctionRef<void(int64_t begin, int64_t end, int32_t worker)>;
  void parallel_for(int64_t n, int64_t grain, Body body);

 private:
  void worker_main(int32_t worker);
  void keep_to_core(int32_t worker) const;
  void run_pieces(int32_t worker);
  bool go_in();

  int32_t num_workers_;
  std::vector<int32_t> cores_;
  bool caller_kept_ = false;  // pinned to its core
  std::vector<std::thread> threads_;
  std::atomic<uint32_t> epoch_{0};  // grows by one per parallel_for; futex of idle workers
  std::atomic<int32_t> sleepers_{0};
  // State of the current call: kClosed, or the number of workers that joined it.
  static constexpr uint32_t kClosed = uint32_t{1} << 31;
  std::atomic<uint32_t> door_{kClosed};
  std::atomic<uint32_t> left_{0};  // of the workers that joined, how many have left
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  const Body* body_ = nullptr;
  int64_t n_ = 0;
  int64_t grain_ = 1;
};

}  // namespace warprow::cpu
