// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/peer_memory.h"

#include "base/check.h"
#include "base/error.h"
#include "device/cuda/cuda_check.h"

#include <cstring>
#include <cuda_runtime_api.h>

#include <fmt/format.h>

namespace warprow::cuda {

PeerMemory::PeerMemory(GroupPlace place, const PeerSizes& sizes)
    : place_(place), layout_(place.size, sizes), regions_(static_cast<size_t>(place.size)) {
  const auto bytes = static_cast<size_t>(layout_.bytes);
  void* base = nullptr;
  if (cudaMalloc(&base, bytes) != cudaSuccess) {
    cudaGetLastError();
    throw StartupError(ErrorCode::kOutOfMemory,
                       fmt::format("the GPU has no {} bytes left for what ranks exchange", bytes));
  }
  own_ = static_cast<std::byte*>(base);
  WR_CUDA(cudaMemset(own_, 0, bytes));
  WR_CUDA(cudaDeviceSynchronize());
  regions_[static_cast<size_t>(place.rank)] = own_;
}

PeerMemory::~PeerMemory() {
  for (std::byte* region : regions_) {
    if (region != nullptr && region != own_) {
      cudaIpcCloseMemHandle(region);
    }
  }
  cudaFree(own_);
}

std::string PeerMemory::handle() const {
  cudaIpcMemHandle_t handle{};
  WR_CUDA(cudaIpcGetMemHandle(&handle, own_));
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

std::string PeerMemory::open(const std::vector<std::string>& handles) {
  WR_CHECK_EQ(handles.size(), regions_.size());
  for (size_t rank = 0; rank < handles.size(); ++rank) {
    if (static_cast<int32_t>(rank) == place_.rank) {
      continue;
    }
    cudaIpcMemHandle_t handle{};
    WR_CHECK_EQ(handles[rank].size(), sizeof handle);
    std::memcpy(&handle, handles[rank].data(), sizeof handle);
    void* region = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&region, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return fmt::format("the memory of rank {}'s GPU: {}", rank, cudaGetErrorString(error));
    }
    regions_[rank] = static_cast<std::byte*>(region);
  }
  return "";
}

PeerGroup PeerMemory::group(const uint32_t* abort) const {
  PeerGroup group;
  for (size_t rank = 0; rank < regions_.size(); ++rank) {
    WR_CHECK(regions_[rank] != nullptr, "the region of rank {} is not mapped", rank);
    group.regions[rank] = regions_[rank];
  }
  group.abort = abort;
  group.rank = place_.rank;
  group.size = place_.size;
  group.layout = layout_;
  return group;
}

}  // namespace warprow::cuda
