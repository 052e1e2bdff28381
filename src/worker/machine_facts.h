// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/resolve.h"
#include "device/device.h"

#include <cstdint>
#include <string>

namespace warprow {

// What the planner needs of the machine.
struct MachineFacts {
  int32_t usable_cores = 1;
  int64_t usable_memory_bytes = 0;
  DeviceFacts gpu;          // kind kCuda if there is one
  std::string why_no_cuda;  // if there is none
  // CPU ranks that divide the cores, and the memory; 0: all of the plan, which then run on one machine.
  int32_t core_ranks = 0;
  int32_t memory_ranks = 0;
};
// The facts of this machine's devices, for a value of EngineConfig::device: "cpu" does not look for a GPU, and the
// name of a known GPU replaces the real one. ordinal: which GPU.
MachineFacts this_machine(const std::string& device = "cpu", int32_t ordinal = 0);
HostFacts host_facts(const MachineFacts& machine);

// The device that a resolved configuration runs on ("cpu" or "cuda"): the GPU, or this machine's cores
// and memory.
DeviceFacts planned_device(const ResolvedConfig& config, const MachineFacts& machine);

}  // namespace warprow
