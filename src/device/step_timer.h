// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace warprow {

// When pieces of a stream's work began and ended on the device, by the device's clock.
//
// Owns: two timing events a piece.
// Thread: the stream's.
class StepTimer {
 public:
  virtual ~StepTimer() = default;
  // Call around a piece. Pieces beyond num_pieces are not timed.
  virtual void begin(Stream& stream) = 0;
  virtual void end(Stream& stream) = 0;

  struct Interval {
    double begin_us = 0;  // since the first begin
    double end_us = 0;
  };
  // Waits for the last piece.
  [[nodiscard]] virtual std::vector<Interval> read() = 0;
};

namespace cuda {
// Null in a build without CUDA.
std::unique_ptr<StepTimer> make_step_timer(int32_t num_pieces);
}  // namespace cuda

}  // namespace warprow
