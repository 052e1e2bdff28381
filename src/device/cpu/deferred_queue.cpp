// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "device/cpu/command_queue.h"

#include <deque>
#include <memory>
#include <random>
#include <vector>

namespace warprow::cpu {
namespace {

class DeferredQueue;

class DeferredEvent final : public Event {
 public:
  explicit DeferredEvent(DeferredQueue& queue) : queue_(queue) {}
  void wait() override;
  [[nodiscard]] bool reached() const override { return done_ >= target_; }

  DeferredQueue& queue_;
  uint64_t target_ = 0;  // records submitted
  uint64_t done_ = 0;    // records passed
};

// A queued command, or a wait for another stream's event.
struct Entry {
  Command command;
  DeferredEvent* event = nullptr;  // a wait when set
  uint64_t ticket = 0;
};

class DeferredStream final : public CopyingStream {
 public:
  DeferredStream(Device& device, DeferredQueue& queue);
  ~DeferredStream() override;
  DeferredStream(const DeferredStream&) = delete;
  DeferredStream& operator=(const DeferredStream&) = delete;

  void record(Event& event) override {
    auto* target = static_cast<DeferredEvent*>(&event);
    const uint64_t ticket = ++target->target_;
    launch("record", [target, ticket](ComputePool&) { target->done_ = ticket; });
  }
  void wait(Event& event) override {
    auto* target = static_cast<DeferredEvent*>(&event);
    entries_.emplace_back();
    entries_.back().event = target;
    entries_.back().ticket = target->target_;
  }
  void synchronize() override;

  [[nodiscard]] bool runnable() const {
    return !entries_.empty() && (entries_.front().event == nullptr ||
                                 entries_.front().event->done_ >= entries_.front().ticket);
  }

  std::deque<Entry> entries_;

 protected:
  Command* begin_command() override {
    entries_.emplace_back();
    return &entries_.back().command;
  }
  void end_command() override {}

 private:
  DeferredQueue& queue_;
};

// Runs nothing until the host waits. Then it picks by seed among the streams whose next command may run. Everything
// runs on the waiting thread, so a run is repeatable.
class DeferredQueue final : public CommandQueue {
 public:
  DeferredQueue(uint64_t seed, CommandRunner& runner) : random_(seed), runner_(runner) {}

  std::unique_ptr<Stream> make_stream(Device& device) override {
    return std::make_unique<DeferredStream>(device, *this);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<DeferredEvent>(*this); }
  void set_gate(bool open) override { open_ = open; }

  template <typename Done>
  void run_until(Done done) {
    while (!done()) {
      WR_CHECK(open_, "waiting for a stream whose gate is shut");
      DeferredStream* stream = pick();
      WR_CHECK(stream != nullptr, "waiting for an event that nothing will record");
      Entry entry = stream->entries_.front();
      stream->entries_.pop_front();
      if (entry.event == nullptr) {
        runner_.run(entry.command);
      }
    }
  }

  std::vector<DeferredStream*> streams_;

 private:
  DeferredStream* pick() {
    std::vector<DeferredStream*> ready;
    for (DeferredStream* stream : streams_) {
      if (stream->runnable()) {
        ready.push_back(stream);
      }
    }
    return ready.empty() ? nullptr : ready[random_() % ready.size()];
  }

  std::mt19937_64 random_;
  CommandRunner& runner_;
  bool open_ = true;
};

DeferredStream::DeferredStream(Device& device, DeferredQueue& queue)
    : CopyingStream(device), queue_(queue) {
  queue_.streams_.push_back(this);
}
DeferredStream::~DeferredStream() { std::erase(queue_.streams_, this); }
void DeferredStream::synchronize() {
  queue_.run_until([this] { return entries_.empty(); });
}
void DeferredEvent::wait() {
  queue_.run_until([this] { return reached(); });
}

}  // namespace

std::unique_ptr<CommandQueue> make_deferred_queue(uint64_t seed, CommandRunner& runner) {
  return std::make_unique<DeferredQueue>(seed, runner);
}

}  // namespace warprow::cpu
