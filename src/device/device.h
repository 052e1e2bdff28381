// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/stream.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace warprow {

enum class DeviceKind : uint8_t { kCpu, kCuda };

// What a device reports at start.
struct DeviceFacts {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;
  int64_t total_bytes = 0;  // memory this process may use: the container's limit, not the machine's
  int64_t free_bytes = 0;
  int32_t num_threads = 1;         // CPU: workers of the compute pool
  int32_t compute_capability = 0;  // CUDA: 90 for 9.0
  int32_t num_sms = 0;             // CUDA
  int32_t max_shared_bytes = 0;    // CUDA: the most dynamic shared memory of a block
  int32_t ordinal = 0;             // CUDA: which of the process's devices
  bool own_memory = false;         // separate from the host's: free_bytes() falls as it is used
  bool zeroed_memory = true;       // arenas start as zeros, also after set_resident(true)
};

// One device: makes streams, events and memory. Independent of language models.
//
// Owns: the compute pool (CPU). Streams, events and arenas must not outlive it.
// Thread: the factory calls from one thread. Another that submits calls use_here first.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual const DeviceFacts& facts() const = 0;
  // Whether it runs nothing (device/shape_only.h).
  [[nodiscard]] virtual bool shape_only() const { return false; }
  // Memory that the device has free now; facts() keeps the value at start.
  [[nodiscard]] virtual int64_t free_bytes() const { return facts().free_bytes; }
  // Makes this the calling thread's device; once for each thread that submits to it. The thread that made the
  // device need not call it.
  virtual void use_here() const {}
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // Memory for one purpose, at an address that never changes. On a CPU pages take memory when first touched; on
  // CUDA all are allocated at once. Throws StartupError.
  virtual Arena make_arena(ArenaPurpose purpose, size_t bytes) = 0;
  // Host memory that the device reads and writes in place; on CUDA all of it is pinned at once.
  virtual PinnedBuffer make_pinned(size_t bytes) = 0;
  // Bytes of the live pinned buffers; on a shape-only device, of all that were requested.
  [[nodiscard]] virtual int64_t pinned_bytes() const { return 0; }
};

}  // namespace warprow
