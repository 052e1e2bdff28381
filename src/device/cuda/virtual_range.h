// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cuda.h>
#include <vector>

namespace warprow::cuda {

// A reserved range of device addresses with physical pages mapped under it. Pages may be unmapped and mapped again;
// the addresses stay valid, and with them views and captured graphs.
//
// Owns: the range and its pages.
// Thread: one at a time; the device must be idle when pages change.
class VirtualRange {
 public:
  // Throws StartupError if the device has too little memory.
  VirtualRange(int ordinal, size_t bytes, const char* purpose);
  ~VirtualRange();
  VirtualRange(const VirtualRange&) = delete;
  VirtualRange& operator=(const VirtualRange&) = delete;

  [[nodiscard]] std::byte* base() const;
  void map();
  void unmap();

 private:
  int ordinal_;
  const char* purpose_;
  size_t bytes_ = 0;  // rounded up to the granularity
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> pages_;
  size_t page_bytes_ = 0;
};

}  // namespace warprow::cuda
