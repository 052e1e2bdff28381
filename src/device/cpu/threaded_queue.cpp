// SPDX-License-Identifier: Apache-2.0
#include "base/alloc_counter.h"
#include "device/cpu/command_queue.h"
#include "device/cpu/spin.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace warprow::cpu {
namespace {

// A ring holds more commands than two steps in flight submit; a submitter that gets further ahead
// waits.
constexpr uint64_t kRingSize = 4096;
constexpr int32_t kQueueSpins = 2000;

class ThreadedEvent final : public Event {
 public:
  void wait() override {
    const uint64_t target = target_.load(std::memory_order_acquire);
    for (int32_t spins = 0; spins < kQueueSpins; ++spins) {
      if (done_.load(std::memory_order_acquire) >= target) {
        return;
      }
      cpu_relax();
    }
    wait_for(target);
  }
  [[nodiscard]] bool reached() const override {
    return done_.load(std::memory_order_acquire) >= target_.load(std::memory_order_acquire);
  }
  uint64_t arm() { return target_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  [[nodiscard]] uint64_t target() const { return target_.load(std::memory_order_acquire); }
  void complete(uint64_t ticket) {
    done_.store(ticket);
    done_.notify_all();
  }
  void wait_for(uint64_t ticket) {
    for (uint64_t done = done_.load(); done < ticket; done = done_.load()) {
      done_.wait(done);
    }
  }

 private:
  std::atomic<uint64_t> target_{0};  // records submitted
  std::atomic<uint64_t> done_{0};    // records passed
};

// Holds commands back while closed.
class Gate {
 public:
  void set(bool open) {
    shut_.store(open ? 0 : 1);
    shut_.notify_all();
  }
  void pass() {
    while (shut_.load() != 0) {
      shut_.wait(1);
    }
  }

 private:
  std::atomic<int32_t> shut_{0};
};

// The production stream: a single-producer ring drained by one thread, which is worker 0 of the compute pool while
// it runs a command. The thread spins briefly for the next command and then sleeps on the ring's head.
class ThreadedStream final : public CopyingStream {
 public:
  ThreadedStream(Device& device, CommandRunner& runner, Gate& gate)
      : CopyingStream(device), runner_(runner), gate_(gate), ring_(kRingSize), thread_([this] {
          drain();
        }) {}

  ~ThreadedStream() override {
    synchronize();
    stop_.store(true);
    head_.fetch_add(1);
    head_.notify_all();
    thread_.join();
  }
  ThreadedStream(const ThreadedStream&) = delete;
  ThreadedStream& operator=(const ThreadedStream&) = delete;

  void record(Event& event) override {
    auto* target = static_cast<ThreadedEvent*>(&event);
    const uint64_t ticket = target->arm();
    launch("record", [target, ticket](ComputePool&) { target->complete(ticket); });
  }
  void wait(Event& event) override {
    auto* target = static_cast<ThreadedEvent*>(&event);
    const uint64_t ticket = target->target();
    launch("wait", [target, ticket](ComputePool&) { target->wait_for(ticket); });
  }
  void synchronize() override {
    const uint64_t target = head_.load();
    for (uint64_t tail = tail_.load(); tail < target; tail = tail_.load()) {
      tail_waiters_.fetch_add(1);
      if (tail_.load() == tail) {
        tail_.wait(tail);
      }
      tail_waiters_.fetch_sub(1);
    }
  }

 protected:
  Command* begin_command() override {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    for (int32_t spins = 0; head - tail_.load(std::memory_order_acquire) >= kRingSize; ++spins) {
      spin_or_yield(spins);
    }
    return &ring_[head % kRingSize];
  }
  void end_command() override {
    head_.fetch_add(1);
    if (asleep_.load()) {
      head_.notify_one();
    }
  }

 private:
  void drain() {
    const CountAllocations count;
    for (uint64_t tail = 0;; ++tail) {
      wait_for_command(tail);
      if (stop_.load()) {
        return;
      }
      gate_.pass();
      runner_.run(ring_[tail % kRingSize]);
      tail_.store(tail + 1);
      if (tail_waiters_.load() > 0) {
        tail_.notify_all();
      }
    }
  }

  void wait_for_command(uint64_t tail) {
    for (int32_t spins = 0; spins < kQueueSpins; ++spins) {
      if (head_.load(std::memory_order_acquire) != tail) {
        return;
      }
      cpu_relax();
    }
    asleep_.store(true);
    while (head_.load() == tail) {
      head_.wait(tail);
    }
    asleep_.store(false);
  }

  CommandRunner& runner_;
  Gate& gate_;
  std::vector<Command> ring_;
  std::atomic<uint64_t> head_{0};  // commands submitted
  std::atomic<uint64_t> tail_{0};  // commands run
  std::atomic<int32_t> tail_waiters_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class ThreadedQueue final : public CommandQueue {
 public:
  explicit ThreadedQueue(CommandRunner& runner) : runner_(runner) {}
  std::unique_ptr<Stream> make_stream(Device& device) override {
    return std::make_unique<ThreadedStream>(device, runner_, gate_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<ThreadedEvent>(); }
  void set_gate(bool open) override { gate_.set(open); }

 private:
  CommandRunner& runner_;
  Gate gate_;
};

}  // namespace

std::unique_ptr<CommandQueue> make_threaded_queue(CommandRunner& runner) {
  return std::make_unique<ThreadedQueue>(runner);
}

}  // namespace warprow::cpu
