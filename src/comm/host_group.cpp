// SPDX-License-Identifier: Apache-2.0
#include "comm/host_group.h"

#include "base/check.h"
#include "base/error.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace warprow {

HostGroup::HostGroup(GroupPlace place, AbortFlag& abort, std::chrono::milliseconds patience)
    : abort_(abort), patience_(patience), place_(place) {
  WR_CHECK(place.rank >= 0 && place.rank < place.size, "rank {} of {}", place.rank, place.size);
}

void HostGroup::refuse(const std::vector<int32_t>& missing) const {
  throw_if_aborted(place_.rank, abort_);
  throw StartupError(ErrorCode::kBusy,
                     fmt::format("rank {} of {} waited {} for {}",
                                 place_.rank,
                                 place_.size,
                                 patience_,
                                 list_ranks(missing)));
}

void throw_if_aborted(int32_t rank, const AbortFlag& abort) {
  if (const auto cause = abort.cause()) {
    throw StartupError(
        ErrorCode::kBusy,
        fmt::format("rank {}: rank {} {}", rank, cause->rank, abort_phase_name(cause->phase)));
  }
}

std::string list_ranks(const std::vector<int32_t>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    list += i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    list += std::to_string(ranks[i]);
  }
  return list;
}

}  // namespace warprow
