// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// Exit codes of a rank process.
enum RankExit : int {
  kRankStopped = 0,   // told to stop
  kRankFailed = 1,    // an error at start or in a step, which it has reported
  kRankAborted = 3,   // another rank failed
  kRankOrphaned = 4,  // the parent ended
};

}  // namespace warprow
