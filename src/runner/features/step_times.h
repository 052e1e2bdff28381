// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/step_timer.h"
#include "runner/features/feature.h"

#include <cstdint>
#include <memory>
#include <string>

namespace warprow {

// Device times of a few steps, when somebody asks for them: from a step's first kernel behind its
// upload to its last. What lies between two steps then is time in which the device waited.
//
// Owns: the timing events, while asked.
// Thread: the runner's.
class StepTimes {
 public:
  // Times the next steps; forgets those before. Does nothing on a CPU.
  void start(DeviceKind kind, int32_t num_steps);
  // [[begin, end], ...] in microseconds since the first begin; waits for the last step.
  [[nodiscard]] std::string json();

  [[nodiscard]] StepTimer* timer() { return timer_.get(); }

 private:
  std::unique_ptr<StepTimer> timer_;
};

// The feature that fills `times`, which must outlive it.
std::unique_ptr<RunnerFeature> make_step_timing(StepTimes& times);

}  // namespace warprow
