// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_stream.h"

#include "base/check.h"
#include "device/cpu/spin.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_event.h"
#include "device/cuda/loaded_code.h"
#include "device/graph.h"
#include "device/host_sync.h"

#include <chrono>

namespace warprow::cuda {
namespace {

// How long a host thread polls before it sleeps. This is longer than a decode step: a core that slept through a
// step runs the next step's host work at half speed, since its caches and clock have gone cold (8B, 256 rows: 105
// us a step, 34 when it polls). It polls only while a step is in flight; an idle engine sleeps.
constexpr std::chrono::milliseconds kSpin{20};
constexpr int32_t kPauses = 64;  // between two polls, about a microsecond

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraph_t recorded) { WR_CUDA(cudaGraphInstantiate(&graph_, recorded, 0)); }
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  [[nodiscard]] cudaGraphExec_t handle() const { return graph_; }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class CudaStreamImpl final : public CudaStream {
 public:
  explicit CudaStreamImpl(Device& device) : device_(device) {
    WR_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaStreamImpl() override { cudaStreamDestroy(stream_); }
  CudaStreamImpl(const CudaStreamImpl&) = delete;
  CudaStreamImpl& operator=(const CudaStreamImpl&) = delete;

  [[nodiscard]] Device& device() const override { return device_; }
  [[nodiscard]] cudaStream_t handle() const override { return stream_; }
  [[nodiscard]] bool kernels_wait() const override { return kernels_wait_; }
  [[nodiscard]] int64_t num_driver_calls() const override { return calls_; }
  void note_launch(const char* /*name*/) override { calls_ += capturing_ ? 0 : 1; }

  void copy_to_device(void* dst, const void* src, size_t bytes) override {
    refuse_pageable(src);
    ++calls_;
    WR_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void copy_to_host(void* dst, const void* src, size_t bytes) override {
    refuse_pageable(dst);
    ++calls_;
    WR_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  void fill(void* dst, int byte, size_t bytes) override {
    ++calls_;
    WR_CUDA(cudaMemsetAsync(dst, byte, bytes, stream_));
  }
  void record(Event& event) override {
    ++calls_;
    WR_CUDA(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), stream_));
  }
  void wait(Event& event) override {
    ++calls_;
    WR_CUDA(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).handle()));
  }
  void synchronize() override {
    note_host_sync("stream synchronize");
    WR_CUDA(cudaStreamSynchronize(stream_));
  }

  void begin_capture() override {
    WR_CHECK(!capturing_, "the stream is being captured already");
    WR_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    capturing_ = true;
  }
  std::unique_ptr<Graph> end_capture() override {
    WR_CHECK(capturing_, "no capture to end");
    capturing_ = false;
    cudaGraph_t recorded = nullptr;
    WR_CUDA(cudaStreamEndCapture(stream_, &recorded));
    auto graph = std::make_unique<CudaGraph>(recorded);
    WR_CUDA(cudaGraphDestroy(recorded));
    return graph;
  }
  void launch_graph(Graph& graph) override {
    ++calls_;
    WR_CUDA(cudaGraphLaunch(static_cast<CudaGraph&>(graph).handle(), stream_));
  }

 private:
  // A copy from or to pageable memory blocks the host until the device is done.
  static void refuse_pageable(const void* host) {
    if (!host_sync_forbidden()) {
      return;
    }
    cudaPointerAttributes attributes{};
    WR_CUDA(cudaPointerGetAttributes(&attributes, host));
    WR_CHECK(attributes.type == cudaMemoryTypeHost, "a copy with pageable memory within a step");
  }

  Device& device_;
  bool kernels_wait_ = portable_code() >= 90;
  cudaStream_t stream_ = nullptr;
  bool capturing_ = false;
  int64_t calls_ = 0;
};

}  // namespace

CudaEvent::CudaEvent() {
  WR_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
}
CudaEvent::~CudaEvent() { cudaEventDestroy(event_); }

void CudaEvent::wait() {
  if (reached()) {
    return;
  }
  note_host_sync("event wait");
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    if (reached()) {
      return;
    }
    for (int32_t i = 0; i < kPauses; ++i) {
      cpu::cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  WR_CUDA(cudaEventSynchronize(event_));
}

bool CudaEvent::reached() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    return false;
  }
  WR_CUDA(state);
  return true;
}

std::unique_ptr<Stream> make_cuda_stream(Device& device) {
  return std::make_unique<CudaStreamImpl>(device);
}

}  // namespace warprow::cuda
