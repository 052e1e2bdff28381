// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/command_queue.h"

#include <cstring>

namespace warprow::cpu {

void CopyingStream::copy_to_device(void* dst, const void* src, size_t bytes) {
  launch("copy_to_device", [dst, src, bytes](ComputePool&) { std::memcpy(dst, src, bytes); });
}

void CopyingStream::copy_to_host(void* dst, const void* src, size_t bytes) {
  launch("copy_to_host", [dst, src, bytes](ComputePool&) { std::memcpy(dst, src, bytes); });
}

void CopyingStream::fill(void* dst, int byte, size_t bytes) {
  launch("fill", [dst, byte, bytes](ComputePool&) { std::memset(dst, byte, bytes); });
}

namespace {

class ReachedEvent final : public Event {
 public:
  void wait() override {}
  [[nodiscard]] bool reached() const override { return true; }
};

// Runs each command as it is submitted.
class ImmediateStream final : public CopyingStream {
 public:
  ImmediateStream(Device& device, CommandRunner& runner) : CopyingStream(device), runner_(runner) {}

  void record(Event& /*event*/) override {}
  void wait(Event& /*event*/) override {}
  void synchronize() override {}

 protected:
  Command* begin_command() override { return &command_; }
  void end_command() override { runner_.run(command_); }

 private:
  CommandRunner& runner_;
  Command command_;
};

class ImmediateQueue final : public CommandQueue {
 public:
  explicit ImmediateQueue(CommandRunner& runner) : runner_(runner) {}
  std::unique_ptr<Stream> make_stream(Device& device) override {
    return std::make_unique<ImmediateStream>(device, runner_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<ReachedEvent>(); }
  void set_gate(bool /*open*/) override {}

 private:
  CommandRunner& runner_;
};

}  // namespace

std::unique_ptr<CommandQueue> make_immediate_queue(CommandRunner& runner) {
  return std::make_unique<ImmediateQueue>(runner);
}

}  // namespace warprow::cpu
