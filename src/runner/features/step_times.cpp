// SPDX-License-Identifier: Apache-2.0
#include "runner/features/step_times.h"

#include "device/step_timer.h"
#include "runner/operations.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

// Owns: the timing events, while timing is on.
class StepTimes final : public RunnerFeature {
 public:
  explicit StepTimes(const RunnerParts& parts) {
    parts.operations->add("time_steps",
                          [this, kind = parts.device->facts().kind](const std::string& argument) {
                            start(kind, std::stoi(argument));
                            return "ok";
                          });
    parts.operations->add("step_times", [this](const std::string&) { return json(); });
  }

  void before_forward(Stream& stream, const InputBatch& /*batch*/) override {
    if (timer_ != nullptr) {
      timer_->begin(stream);
    }
  }
  void after_sample(Stream& stream, const InputBatch& /*batch*/) override {
    if (timer_ != nullptr) {
      timer_->end(stream);
    }
  }

 private:
  void start(DeviceKind kind, int32_t num_steps) {
    timer_ = kind == DeviceKind::kCuda ? cuda::make_step_timer(num_steps) : nullptr;
  }

  [[nodiscard]] std::string json() const {
    std::string out = "[";
    if (timer_ != nullptr) {
      for (const StepTimer::Interval& step : timer_->read()) {
        out +=
            fmt::format("{}[{:.3f},{:.3f}]", out.size() > 1 ? "," : "", step.begin_us, step.end_us);
      }
    }
    return out + "]";
  }

  std::unique_ptr<StepTimer> timer_;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_step_times(const RunnerParts& parts) {
  return std::make_unique<StepTimes>(parts);
}

}  // namespace warprow
