// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include "base/check.h"
#include "base/error.h"

#include <cuda_runtime_api.h>

namespace warprow::cuda {
namespace {

template <typename F>
void find(F& function, const char* name) {
  constexpr unsigned kVersion = 12000;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &entry, kVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || entry == nullptr) {
    throw StartupError(ErrorCode::kUnsupported,
                       fmt::format("the CUDA driver is too old: it lacks {}", name));
  }
  function = reinterpret_cast<F>(entry);
}

Driver find_all() {
  Driver found{};
  find(found.reserve, "cuMemAddressReserve");
  find(found.free_address, "cuMemAddressFree");
  find(found.create, "cuMemCreate");
  find(found.release, "cuMemRelease");
  find(found.map, "cuMemMap");
  find(found.unmap, "cuMemUnmap");
  find(found.set_access, "cuMemSetAccess");
  find(found.granularity, "cuMemGetAllocationGranularity");
  find(found.encode_tiled, "cuTensorMapEncodeTiled");
  find(found.error_name, "cuGetErrorName");
  return found;
}

}  // namespace

const Driver& driver() {
  static const Driver found = find_all();
  return found;
}

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) {
    return;
  }
  const char* name = "?";
  driver().error_name(result, &name);
  WR_CHECK(false, "{}: {} ({})", call, name, static_cast<int>(result));
}

}  // namespace warprow::cuda
