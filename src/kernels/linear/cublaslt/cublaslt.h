// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/stream.h"
#include "kernels/act_view.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <string>

namespace warprow::cuda {

// Workspace that every product may use, in bytes.
inline constexpr size_t kLtWorkspaceBytes = size_t{32} << 20;

// A kind of product y [m, n] = (accumulate ? y : 0) + x [m, k] * w [n, k]^T, x and w bf16.
struct LtProduct {
  int32_t n = 0;
  int32_t k = 0;
  bool y_f32 = false;  // else bf16
  bool accumulate = false;
  // One algorithm for every m, without split-K: a row's result does not depend on m.
  bool batch_invariant = false;
};

struct LtOperands {
  int32_t m = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements
  const void* w = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  std::byte* workspace = nullptr;  // dev, kLtWorkspaceBytes
};

struct LtApi;
struct LtPlans;

// cuBLASLt on one device, opened at run time, with one chosen algorithm per product and range of m.
//
// Owns: the library handle and the table of plans.
// Thread: any; a lock guards the table.
// Invariant: after prepare, run allocates nothing and calls no heuristic.
class CublasLt {
 public:
  // The instance for a device, which must be the calling thread's current one. The first call opens the
  // library. Throws StartupError that lists where it was searched.
  static CublasLt& of(const DeviceFacts& device);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Start-up. Chooses algorithms for m from min_m to max_m: from the file of earlier measurements, else by
  // the library's heuristic.
  void prepare(const LtProduct& product, int32_t min_m, int32_t max_m);
  // Like prepare, but times the candidates of plans that are not in the file, and writes the results to
  // ${XDG_CACHE_HOME:-~/.cache}/warprow/cublaslt/<gpu>.txt. Allocates device memory while it runs.
  void tune(const LtProduct& product, int32_t min_m, int32_t max_m);
  void run(cudaStream_t stream, const LtProduct& product, const LtOperands& operands);

  // Version and path of the opened library, such as "13.1.0 (/path)".
  [[nodiscard]] const std::string& version() const { return version_; }

 private:
  explicit CublasLt(const DeviceFacts& device);

  std::unique_ptr<LtApi> api_;
  std::unique_ptr<LtPlans> plans_;
  std::string version_;
};

// y[t, j] = bias[j], or with `add` y[t, j] += bias[j]. Runs before a product that accumulates into y. For a
// bf16 y this is exact if the bias came from bf16, as in checkpoints.
void bias_rows(Stream& stream, const ActView& y, const float* bias, bool add);

}  // namespace warprow::cuda
