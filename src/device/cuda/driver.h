// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cuda.h>

namespace warprow::cuda {

// The driver's functions that the runtime lacks: virtual memory, TMA maps. The driver's library is never linked:
// entry points come from the runtime, so a binary also starts without a driver.
struct Driver {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_address;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuTensorMapEncodeTiled) encode_tiled;
  decltype(&cuGetErrorName) error_name;
};

// Looked up once. Throws StartupError if the driver is too old.
const Driver& driver();

// Fails a check with the call's text and the error's name.
void check_driver(CUresult result, const char* call);

}  // namespace warprow::cuda

#define WR_CU(call) ::warprow::cuda::check_driver((call), #call)
