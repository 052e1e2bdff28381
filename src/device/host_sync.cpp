// SPDX-License-Identifier: Apache-2.0
#include "device/host_sync.h"

#include "base/check.h"

namespace warprow {
namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): a thread's own depth
thread_local int forbidden = 0;

}  // namespace

ScopedNoHostSync::ScopedNoHostSync(bool active) : active_(active) { forbidden += active ? 1 : 0; }
ScopedNoHostSync::~ScopedNoHostSync() { forbidden -= active_ ? 1 : 0; }

void note_host_sync(const char* what) {
  WR_CHECK(forbidden == 0, "the host waits for the device within a step: {}", what);
}

bool host_sync_forbidden() { return forbidden > 0; }

}  // namespace warprow
