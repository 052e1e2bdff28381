// SPDX-License-Identifier: Apache-2.0
#include "runner/features/forward_mark.h"

namespace warprow {
namespace {

class ForwardMarks final : public RunnerFeature {
 public:
  explicit ForwardMarks(ForwardMark& mark) : mark_(mark) {}

  void stage(const SchedulerOutput& step) override { active_ = !step.grammar_rows.empty(); }
  void after_forward(Stream& stream, const InputBatch& /*batch*/) override {
    if (active_) {
      mark_.set(stream);
    }
  }

 private:
  ForwardMark& mark_;
  bool active_ = false;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_forward_marks(ForwardMark& mark) {
  return std::make_unique<ForwardMarks>(mark);
}

}  // namespace warprow
