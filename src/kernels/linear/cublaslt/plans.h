// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cublaslt/cublaslt.h"

#include <cstdint>
#include <cublasLt.h>
#include <string>
#include <vector>

namespace warprow::cuda {

inline constexpr int32_t kInvariantRange = 0;  // stands for every m, for a batch-invariant product

struct LtPlanKey {
  LtProduct product;
  int32_t range = 0;  // the largest m
};

struct LtPlan {
  LtPlanKey key;
  cublasLtMatmulAlgo_t algo;
};

// Algorithms by product and range, sorted. File format: a line with the library's version, then one line per
// plan. cuBLAS allows storing an algorithm for use with the same library version.
class LtPlanTable {
 public:
  // Returns an empty table if there is no such file, or if another version wrote it.
  static LtPlanTable read(const std::string& file, size_t version);
  [[nodiscard]] bool write(const std::string& file, size_t version) const;

  [[nodiscard]] const LtPlan* find(const LtPlanKey& key) const;
  const LtPlan& insert(const LtPlan& plan);

 private:
  std::vector<LtPlan> plans_;
};

// ${XDG_CACHE_HOME:-~/.cache}/warprow/cublaslt/<gpu>.txt
std::string lt_plan_file(const std::string& gpu);

}  // namespace warprow::cuda
