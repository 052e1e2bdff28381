// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda_device.h"
#include "tests/support/op_case.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace warprow::cuda {

// The measured peaks of one H200: a pure memory read and a large bf16 matrix product.
inline constexpr double kReadBytesPerSecond = 4.69e12;
inline constexpr double kBf16FlopsPerSecond = 797e12;

// The first GPU and a stream on it.
struct BenchDevice {
  std::unique_ptr<Device> device = make_cuda_device();
  std::unique_ptr<Stream> stream = device->make_stream();
};

// Device memory for a benchmark, freed by the destructor.
class BenchBuffer {
 public:
  explicit BenchBuffer(size_t bytes) : bytes_(bytes) { WR_CUDA(cudaMalloc(&data_, bytes)); }
  ~BenchBuffer() { cudaFree(data_); }
  BenchBuffer(const BenchBuffer&) = delete;
  BenchBuffer& operator=(const BenchBuffer&) = delete;
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// The buffers that a benchmark reads and writes, freed by the destructor.
class BenchBuffers final : public testing::CaseMemory {
 public:
  std::byte* put_bytes(const void* bytes, size_t n) override {
    auto* p = allocate<std::byte>(n);
    WR_CUDA(cudaMemcpy(p, bytes, n, cudaMemcpyHostToDevice));
    return p;
  }
  template <typename T>
  T* allocate(size_t n) {
    owned_.push_back(std::make_unique<BenchBuffer>(n * sizeof(T)));
    return owned_.back()->as<T>();
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* p = allocate<T>(values.size());
    WR_CUDA(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
  }
  // Normally distributed random bf16 numbers. Long arrays repeat.
  uint16_t* normal_bf16(size_t n) {
    static const std::vector<uint16_t> stretch = [] {
      std::vector<uint16_t> values((1 << 21) + 37);
      std::mt19937 rng(7);
      std::normal_distribution<float> normal;
      for (uint16_t& v : values) {
        v = f32_to_bf16(normal(rng));
      }
      return values;
    }();
    auto* p = allocate<uint16_t>(n);
    const size_t step = std::min(stretch.size(), n);
    WR_CUDA(cudaMemcpy(p, stretch.data(), step * 2, cudaMemcpyHostToDevice));
    for (size_t at = step; at < n; at += step) {
      WR_CUDA(cudaMemcpy(p + at, p, std::min(step, n - at) * 2, cudaMemcpyDeviceToDevice));
    }
    return p;
  }

 private:
  std::vector<std::unique_ptr<BenchBuffer>> owned_;
};

// The number of copies of a call's input to cycle through, so that L2 does not serve the reads.
inline int copies_beyond_l2(size_t bytes) {
  constexpr size_t kEnough = size_t{320} << 20;
  return static_cast<int>(std::clamp<size_t>((kEnough + bytes - 1) / bytes, 2, 64));
}

// Stands for the other kernels of a step. It waits for the whole previous call, and the next call waits for it.
static __global__ void gap_kernel() {
  pdl_wait();
  pdl_release();
}
inline void launch_gap(Stream& stream) {
  launch(stream, "gap", {.grid = dim3(64), .block = dim3(128)}, gap_kernel);
}

// Median time in microseconds of one of `calls` launches, which are captured into one graph and replayed. launch_nth(i)
// launches the i-th on the stream.
inline double graph_us(Stream& stream,
                       int calls,
                       const std::function<void(int)>& launch_nth,
                       int replays = 9) {
  cudaStream_t on = as_cuda(stream).handle();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  WR_CUDA(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) {
    launch_nth(i);
  }
  WR_CUDA(cudaStreamEndCapture(on, &graph));
  WR_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  WR_CUDA(cudaEventCreate(&begin));
  WR_CUDA(cudaEventCreate(&end));
  WR_CUDA(cudaGraphLaunch(exec, on));
  std::vector<float> times;
  for (int r = 0; r < replays; ++r) {
    WR_CUDA(cudaEventRecord(begin, on));
    WR_CUDA(cudaGraphLaunch(exec, on));
    WR_CUDA(cudaEventRecord(end, on));
    WR_CUDA(cudaEventSynchronize(end));
    float ms = 0.0F;
    WR_CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  WR_CUDA(cudaEventDestroy(begin));
  WR_CUDA(cudaEventDestroy(end));
  WR_CUDA(cudaGraphExecDestroy(exec));
  WR_CUDA(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + replays / 2, times.end());
  return times[replays / 2] * 1e3 / calls;
}

}  // namespace warprow::cuda
