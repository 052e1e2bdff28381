// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Where the forward of the step just executed stands, for whoever prepares its sampling meanwhile.
// Marks only steps that have grammar rows: an event is one more call to a driver.
//
// Owns: the event.
// Thread: the runner's.
class ForwardMark {
 public:
  explicit ForwardMark(Device& device) : event_(device.make_event()) {}

  // Whether the last forward marked is done; true if there was none.
  [[nodiscard]] bool reached() const { return event_->reached(); }
  void set(Stream& stream) { stream.record(*event_); }

 private:
  std::unique_ptr<Event> event_;
};

// The feature that sets `mark`, which must outlive it.
std::unique_ptr<RunnerFeature> make_forward_marks(ForwardMark& mark);

}  // namespace warprow
