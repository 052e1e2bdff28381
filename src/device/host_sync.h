// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// While one exists, waiting for the device on this thread (an event that is not reached, a stream, a copy from
// pageable memory) fails a check: a step must never wait. Nests.
class ScopedNoHostSync {
 public:
  explicit ScopedNoHostSync(bool active = true);
  ~ScopedNoHostSync();
  ScopedNoHostSync(const ScopedNoHostSync&) = delete;
  ScopedNoHostSync& operator=(const ScopedNoHostSync&) = delete;

 private:
  bool active_;
};

// Called by streams and events where they are about to block; `what` names the wait.
void note_host_sync(const char* what);
// Whether a scope is open: for checks that are too expensive to run always.
[[nodiscard]] bool host_sync_forbidden();

}  // namespace warprow
