// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"

#include <cuda_runtime_api.h>
#include <memory>

namespace warprow::cuda {

// Owns: the event.
class CudaEvent final : public Event {
 public:
  CudaEvent();
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // Polls for some milliseconds, then sleeps until the driver wakes it.
  void wait() override;
  [[nodiscard]] bool reached() const override;
  [[nodiscard]] cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

std::unique_ptr<Stream> make_cuda_stream(Device& device);

}  // namespace warprow::cuda
