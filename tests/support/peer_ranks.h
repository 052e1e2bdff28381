// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/cuda/peer_communicator.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/peer_group.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <vector>

namespace warprow::test {

inline int32_t num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Regions of ranks that are threads of this process, over as many GPUs as there are: rank r on GPU r % GPUs. Several
// ranks on one GPU run beside each other as long as their blocks fit.
class PeerRanks {
 public:
  PeerRanks(int32_t size, const cuda::PeerSizes& sizes) : layout_(size, sizes) {
    for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) {
      WR_CUDA(cudaSetDevice(gpu));
      for (int32_t other = 0; other < num_gpus(); ++other) {
        if (other != gpu && cudaDeviceEnablePeerAccess(other, 0) != cudaSuccess) {
          cudaGetLastError();  // it was enabled before
        }
      }
    }
    for (int32_t rank = 0; rank < size; ++rank) {
      WR_CUDA(cudaSetDevice(gpu_of(rank)));
      void* region = nullptr;
      WR_CUDA(cudaMalloc(&region, static_cast<size_t>(layout_.bytes)));
      WR_CUDA(cudaMemset(region, 0, static_cast<size_t>(layout_.bytes)));
      WR_CUDA(cudaDeviceSynchronize());
      regions_.push_back(static_cast<std::byte*>(region));
    }
    void* word = nullptr;
    WR_CUDA(cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped));
    abort_ = static_cast<volatile uint32_t*>(word);
    *abort_ = 0;
  }
  ~PeerRanks() {
    for (std::byte* region : regions_) {
      cudaFree(region);
    }
    cudaFreeHost(const_cast<uint32_t*>(abort_));
  }
  PeerRanks(const PeerRanks&) = delete;
  PeerRanks& operator=(const PeerRanks&) = delete;

  static int32_t gpu_of(int32_t rank) { return rank % num_gpus(); }
  void abort() { *abort_ = 1; }

  [[nodiscard]] std::unique_ptr<Communicator> join(int32_t rank) const {
    cuda::PeerGroup group;
    for (size_t i = 0; i < regions_.size(); ++i) {
      group.regions[i] = regions_[i];
    }
    group.abort = const_cast<const uint32_t*>(abort_);
    group.rank = rank;
    group.size = static_cast<int32_t>(regions_.size());
    group.layout = layout_;
    return cuda::make_peer_communicator(group);
  }

 private:
  cuda::PeerLayout layout_;
  std::vector<std::byte*> regions_;
  volatile uint32_t* abort_ = nullptr;
};

}  // namespace warprow::test
