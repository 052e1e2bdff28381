// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// Counts this thread's heap allocations during its lifetime. The step loop and the device's threads hold one, so
// that every run can print whether steps allocate. A binary that uses these functions gets a counting operator new.
// Sanitizers have their own operator new; under them the count stays 0.
class CountAllocations {
 public:
  CountAllocations();
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

 private:
  bool previous_;
};

// Allocations counted so far, over all threads.
int64_t counted_allocations();
// Whether counting works in this build.
bool counts_allocations();

}  // namespace warprow
