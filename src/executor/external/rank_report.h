// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/mp/control_block.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// Kinds of messages on a RankLink beside ToRank and FromRank (executor/mp/rank_messages.h).
enum class LinkMessage : uint32_t {
  kBeat = 100,  // from rank 0: a sign of life, without content
  kReport,      // to rank 0: the rank's state
};

// A rank's state as it goes to rank 0 ten times a second, and at once when the rank has failed.
void encode_report(const RankState& state, std::vector<uint8_t>& bytes);
// Copies it into the state that rank 0 shows its executor, and counts a beat. False if the bytes are no report.
bool take_report(std::span<const uint8_t> bytes, RankState& state);

}  // namespace warprow
