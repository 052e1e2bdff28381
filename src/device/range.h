// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// A named span of host time as profilers show it (NVTX in builds with CUDA, nothing otherwise; a few
// nanoseconds where no profiler listens). Nests.
class ScopedRange {
 public:
  explicit ScopedRange(const char* name);
  ~ScopedRange();  // NOLINT(performance-trivially-destructible): with CUDA it ends the span
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;
};

}  // namespace warprow
