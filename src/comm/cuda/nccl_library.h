// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <string>

namespace warprow::cuda {

// What we call of NCCL, which is opened at run time and whose header the build does not need.
struct Nccl {
  struct Id {
    char bytes[128];
  };
  using Comm = struct NcclComm*;
  enum Type : int { kBytes = 0, kFloat = 7 };  // ncclInt8, ncclFloat32
  enum Operation : int { kSum = 0 };

  int (*get_version)(int* version);
  const char* (*error_string)(int result);
  int (*get_id)(Id* id);
  int (*init_rank)(Comm* comm, int size, Id id, int rank);
  int (*destroy)(Comm comm);
  int (*abort)(Comm comm);
  int (*all_reduce)(const void*, void*, size_t, Type, Operation, Comm, cudaStream_t);
  int (*all_gather)(const void*, void*, size_t, Type, Comm, cudaStream_t);
  int (*broadcast)(const void*, void*, size_t, Type, int root, Comm, cudaStream_t);
  int (*send)(const void*, size_t, Type, int to, Comm, cudaStream_t);
  int (*receive)(void*, size_t, Type, int from, Comm, cudaStream_t);
  int (*group_start)();
  int (*group_end)();
  std::string path;  // of the library
};

// Opened by the first call, with NCCL_NVLS_ENABLE=0 in the environment: NVLink multicast stays off. Looks for the file that
// WARPROW_NCCL names, for libnccl.so.2 where the loader looks, and in CUDA's folders and Python packages. Throws
// StartupError: none was found, or it is older than 2.28.
const Nccl& nccl();

// Fails a check with the call's text and NCCL's message.
void check_nccl(int result, const char* call);

}  // namespace warprow::cuda

#define WR_NCCL(call) ::warprow::cuda::check_nccl((call), #call)
