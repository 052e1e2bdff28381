// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// A named span of host time in profilers (NVTX in builds with CUDA, nothing otherwise; a few nanoseconds without a
// profiler). Nests.
class ScopedRange {
 public:
  explicit ScopedRange(const char* name);
  ~ScopedRange();  // NOLINT(performance-trivially-destructible): with CUDA it ends the span
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;
};

}  // namespace warprow
