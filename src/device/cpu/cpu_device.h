// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cpu/compute_pool.h"
#include "device/device.h"

#include <cstdint>
#include <memory>

namespace warprow::cpu {

// When a stream's commands run.
enum class CpuStreamMode : uint8_t {
  // Production: on the stream's own thread, which leads the compute pool.
  kThreaded,
  // At once, on the submitting thread; for debugging and simple tests.
  kInline,
  // Not before somebody waits for an event; several streams are interleaved by seed, honouring
  // only events: finds every missing wait.
  kDeferred,
};

struct CpuDeviceOptions {
  int32_t num_threads = 0;   // 0: the cores this process may use (affinity and container quota)
  bool pin_threads = false;  // each keeps to one core of the affinity mask
  CpuStreamMode mode = CpuStreamMode::kThreaded;
  uint64_t seed =
      1;  // kDeferred: order of streams; also shuffles functor launches when shuffle is set
  bool shuffle = false;  // run the items of runner functors in a random order
  bool guard_arenas =
      false;  // arenas are inaccessible except while a command runs (tests: finds host reads)
};

// What tests may do to a CPU device beyond the Device interface.
class CpuDevice : public Device {
 public:
  [[nodiscard]] virtual const CpuDeviceOptions& options() const = 0;
  [[nodiscard]] virtual ComputePool& pool() = 0;
  // A shut gate holds back every command of every threaded or deferred stream; opening it lets them
  // go on.
  virtual void set_gate(bool open) = 0;
  // Commands run so far, over all streams.
  [[nodiscard]] virtual int64_t num_commands_run() const = 0;
};

std::unique_ptr<CpuDevice> make_cpu_device(const CpuDeviceOptions& options);

// The cores this process may use: its affinity mask, cut to the container's CPU quota, at least 1.
int32_t usable_cores();
// The memory this process may use: the machine's, cut to the container's limit.
int64_t usable_memory_bytes();

}  // namespace warprow::cpu
