// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_stream.h"
#include "device/stream.h"

#include <cstdint>
#include <memory>

namespace warprow::cpu {

// Runs one command; the device's part of a launch.
class CommandRunner {
 public:
  virtual ~CommandRunner() = default;
  virtual void run(Command& command) = 0;
};

// How a device's streams run their commands; one kind per CpuStreamMode.
class CommandQueue {
 public:
  virtual ~CommandQueue() = default;
  virtual std::unique_ptr<Stream> make_stream(Device& device) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void set_gate(bool open) = 0;
};

std::unique_ptr<CommandQueue> make_immediate_queue(CommandRunner& runner);
std::unique_ptr<CommandQueue> make_deferred_queue(uint64_t seed, CommandRunner& runner);
std::unique_ptr<CommandQueue> make_threaded_queue(CommandRunner& runner);

inline std::unique_ptr<CommandQueue> make_command_queue(const CpuDeviceOptions& options,
                                                        CommandRunner& runner) {
  switch (options.mode) {
    case CpuStreamMode::kThreaded:
      return make_threaded_queue(runner);
    case CpuStreamMode::kDeferred:
      return make_deferred_queue(options.seed, runner);
    case CpuStreamMode::kInline:
      break;
  }
  return make_immediate_queue(runner);
}

// Implements the copies and fills of every CPU stream as ordinary commands.
class CopyingStream : public CpuStream {
 public:
  explicit CopyingStream(Device& device) : device_(device) {}
  [[nodiscard]] Device& device() const override { return device_; }
  void copy_to_device(void* dst, const void* src, size_t bytes) override;
  void copy_to_host(void* dst, const void* src, size_t bytes) override;
  void fill(void* dst, int byte, size_t bytes) override;

 private:
  Device& device_;
};

}  // namespace warprow::cpu
