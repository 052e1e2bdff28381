// SPDX-License-Identifier: Apache-2.0
#include "worker/machine_facts.h"

#include "device/cpu/cpu_device.h"
#include "device/cuda_device.h"

#include <utility>

namespace warprow {

MachineFacts this_machine(const std::string& device, int32_t ordinal) {
  MachineFacts machine;
  machine.usable_cores = cpu::usable_cores();
  machine.usable_memory_bytes = cpu::usable_memory_bytes();
  if (device == "cpu") {
    return machine;
  }
  if (const DeviceFacts* known = cuda::known_device(device); known != nullptr) {
    machine.gpu = *known;
    return machine;
  }
  cuda::Availability found = cuda::find_device(ordinal);
  machine.gpu = std::move(found.facts);
  machine.why_no_cuda = std::move(found.why_not);
  return machine;
}

HostFacts host_facts(const MachineFacts& machine) {
  HostFacts facts;
  facts.usable_cores = machine.usable_cores;
  facts.usable_memory_bytes = machine.usable_memory_bytes;
  facts.has_cuda = machine.gpu.kind == DeviceKind::kCuda;
  facts.why_no_cuda = machine.why_no_cuda;
  facts.compute_capability = machine.gpu.compute_capability;
  facts.gpu_memory_bytes = machine.gpu.total_bytes;
  return facts;
}

DeviceFacts planned_device(const ResolvedConfig& config, const MachineFacts& machine) {
  if (config.device != "cpu") {
    return machine.gpu;
  }
  DeviceFacts facts;
  facts.name = config.device;
  facts.total_bytes = machine.usable_memory_bytes;
  facts.free_bytes = machine.usable_memory_bytes;
  facts.num_threads = config.threads;
  return facts;
}

}  // namespace warprow
