// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cpu/compute_pool.h"
#include "device/device.h"

#include <cstdint>
#include <memory>

namespace warprow::cpu {

// When a stream's commands run.
enum class CpuStreamMode : uint8_t {
  // Production: on the stream's own thread, which is worker 0 of the compute pool.
  kThreaded,
  // At once, on the submitting thread; for debugging and simple tests.
  kInline,
  // Not before the host waits for an event. Then streams are interleaved by seed and only events order them: finds
  // every missing wait.
  kDeferred,
};

struct CpuDeviceOptions {
  int32_t num_threads = 0;   // 0: the cores this process may use (affinity and container quota)
  bool pin_threads = false;  // each pinned to one core of the affinity mask
  CpuStreamMode mode = CpuStreamMode::kThreaded;
  // kDeferred: order of streams. Also the order of shuffled functor launches, with `shuffle`.
  uint64_t seed = 1;
  bool shuffle = false;  // run the items of runner functors in a random order
  // Arenas are inaccessible except while a command runs. For tests: finds host reads of device memory.
  bool guard_arenas = false;
};

// What tests may do with a CPU device beyond the Device interface.
class CpuDevice : public Device {
 public:
  [[nodiscard]] virtual const CpuDeviceOptions& options() const = 0;
  [[nodiscard]] virtual ComputePool& pool() = 0;
  // A closed gate holds back every command of every threaded or deferred stream; opening it releases them.
  virtual void set_gate(bool open) = 0;
  // Commands run so far, over all streams.
  [[nodiscard]] virtual int64_t num_commands_run() const = 0;
};

// Throws StartupError if WARPROW_CPU_ISA cannot be had (base/cpu_isa.h).
std::unique_ptr<CpuDevice> make_cpu_device(const CpuDeviceOptions& options);

// The cores this process may use: its affinity mask, limited by the container's CPU quota, at least 1.
int32_t usable_cores();
// The memory this process may use: the machine's, limited by the container.
int64_t usable_memory_bytes();

}  // namespace warprow::cpu
