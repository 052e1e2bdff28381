// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/control_block.h"

#include <algorithm>

namespace warprow {

std::string_view rank_phase_name(RankPhase phase) {
  constexpr std::string_view kNames[] = {
      "starting", "loading", "waiting", "submitting", "running", "operation"};
  return kNames[static_cast<size_t>(phase)];
}

void RankState::fail(std::string_view why) {
  uint32_t none = 0;
  if (!has_failed.compare_exchange_strong(none, 1)) {
    return;
  }
  const size_t n = std::min(why.size(), kMessageBytes - 1);
  std::copy_n(why.begin(), n, message);
  message[n] = 0;
  has_failed.store(2);
}

std::string RankState::failure() const { return has_failed.load() == 2 ? message : ""; }

}  // namespace warprow
