// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/virtual_range.h"

#include "base/error.h"
#include "base/math.h"
#include "device/cuda/driver.h"

#include <algorithm>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

// Pages are allocated in pieces of this size, so that a large range needs few calls.
constexpr size_t kPieceBytes = size_t{1} << 30;

CUmemAllocationProp properties(int ordinal) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = ordinal;
  return prop;
}

}  // namespace

VirtualRange::VirtualRange(int ordinal, size_t bytes, const char* purpose)
    : ordinal_(ordinal), purpose_(purpose) {
  const CUmemAllocationProp prop = properties(ordinal);
  size_t granularity = 0;
  WR_CU(driver().granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  bytes_ = round_up(std::max<size_t>(bytes, 1), granularity);
  page_bytes_ = std::min(kPieceBytes, bytes_);
  WR_CU(driver().reserve(&base_, bytes_, 0, 0, 0));
  try {
    map();
  } catch (...) {
    driver().free_address(base_, bytes_);
    throw;
  }
}

VirtualRange::~VirtualRange() {
  unmap();
  driver().free_address(base_, bytes_);
}

std::byte* VirtualRange::base() const {
  return reinterpret_cast<std::byte*>(base_);  // NOLINT(performance-no-int-to-ptr)
}

void VirtualRange::map() {
  const CUmemAllocationProp prop = properties(ordinal_);
  for (size_t at = 0; at < bytes_; at += page_bytes_) {
    const size_t piece = std::min(page_bytes_, bytes_ - at);
    CUmemGenericAllocationHandle page{};
    if (driver().create(&page, piece, &prop, 0) != CUDA_SUCCESS) {
      unmap();
      throw StartupError(ErrorCode::kOutOfMemory,
                         fmt::format("the GPU has no {} bytes left for {}", bytes_, purpose_));
    }
    pages_.push_back(page);
    WR_CU(driver().map(base_ + at, piece, 0, page, 0));
  }
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  WR_CU(driver().set_access(base_, bytes_, &access, 1));
}

void VirtualRange::unmap() {
  for (size_t i = 0; i < pages_.size(); ++i) {
    const size_t at = i * page_bytes_;
    driver().unmap(base_ + at, std::min(page_bytes_, bytes_ - at));
    driver().release(pages_[i]);
  }
  pages_.clear();
}

}  // namespace warprow::cuda
