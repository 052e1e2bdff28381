// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/cpu_isa.h"
#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace warprow::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// A CPU device with an inline stream: an operation has completed when its call returns.
struct CpuHarness {
  explicit CpuHarness(int32_t num_threads = 2)
      : device(cpu::make_cpu_device(
            {.num_threads = num_threads, .mode = cpu::CpuStreamMode::kInline})),
        stream(device->make_stream()) {}
  std::unique_ptr<cpu::CpuDevice> device;
  std::unique_ptr<Stream> stream;
};

// The instruction sets that this machine can run.
inline std::vector<CpuIsa> runnable_isas() {
  std::vector<CpuIsa> isas;
  std::ranges::copy_if(kCpuIsas, std::back_inserter(isas), &has_cpu_isa);
  return isas;
}

inline std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1.0F) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(n);
  for (float& v : values) {
    v = normal(rng);
  }
  return values;
}

}  // namespace warprow::testing
