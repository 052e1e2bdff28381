// SPDX-License-Identifier: Apache-2.0
#include "runner/features/step_times.h"

#include <fmt/format.h>

namespace warprow {
namespace {

class StepTiming final : public RunnerFeature {
 public:
  explicit StepTiming(StepTimes& times) : times_(times) {}

  void before_forward(Stream& stream, const InputBatch& /*batch*/) override {
    if (times_.timer() != nullptr) {
      times_.timer()->begin(stream);
    }
  }
  void after_sample(Stream& stream, const InputBatch& /*batch*/) override {
    if (times_.timer() != nullptr) {
      times_.timer()->end(stream);
    }
  }

 private:
  StepTimes& times_;
};

}  // namespace

void StepTimes::start(DeviceKind kind, int32_t num_steps) {
  timer_ = kind == DeviceKind::kCuda ? cuda::make_step_timer(num_steps) : nullptr;
}

std::string StepTimes::json() {
  std::string out = "[";
  if (timer_ != nullptr) {
    for (const StepTimer::Interval& step : timer_->read()) {
      out +=
          fmt::format("{}[{:.3f},{:.3f}]", out.size() > 1 ? "," : "", step.begin_us, step.end_us);
    }
  }
  return out + "]";
}

std::unique_ptr<RunnerFeature> make_step_timing(StepTimes& times) {
  return std::make_unique<StepTiming>(times);
}

}  // namespace warprow
