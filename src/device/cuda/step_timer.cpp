// SPDX-License-Identifier: Apache-2.0
#include "device/step_timer.h"

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"

#include <cstddef>
#include <cuda_runtime_api.h>

namespace warprow::cuda {
namespace {

double us_between(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0.0F;
  WR_CUDA(cudaEventElapsedTime(&ms, from, to));
  return 1000.0 * static_cast<double>(ms);
}

class CudaStepTimer final : public StepTimer {
 public:
  explicit CudaStepTimer(int32_t num_pieces) : events_(2 * static_cast<size_t>(num_pieces)) {
    for (cudaEvent_t& event : events_) {
      WR_CUDA(cudaEventCreate(&event));
    }
  }
  ~CudaStepTimer() override {
    for (cudaEvent_t event : events_) {
      cudaEventDestroy(event);
    }
  }
  CudaStepTimer(const CudaStepTimer&) = delete;
  CudaStepTimer& operator=(const CudaStepTimer&) = delete;

  void begin(Stream& stream) override { record(stream); }
  void end(Stream& stream) override { record(stream); }

  [[nodiscard]] std::vector<Interval> read() override {
    std::vector<Interval> intervals;
    if (used_ < 2) {
      return intervals;
    }
    WR_CUDA(cudaEventSynchronize(events_[used_ - 1]));
    // Sums from one event to the next, since a float of a long time is not precise to a microsecond.
    double at = 0;
    for (size_t i = 0; i + 1 < used_; i += 2) {
      at += i == 0 ? 0 : us_between(events_[i - 1], events_[i]);
      const double end = at + us_between(events_[i], events_[i + 1]);
      intervals.push_back({at, end});
      at = end;
    }
    return intervals;
  }

 private:
  void record(Stream& stream) {
    if (used_ < events_.size()) {
      WR_CUDA(cudaEventRecord(events_[used_++], as_cuda(stream).handle()));
    }
  }

  std::vector<cudaEvent_t> events_;  // begin, end, begin, ...
  size_t used_ = 0;
};

}  // namespace

std::unique_ptr<StepTimer> make_step_timer(int32_t num_pieces) {
  return std::make_unique<CudaStepTimer>(num_pieces);
}

}  // namespace warprow::cuda
