// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <vector>

namespace warprow {

// What stands in a recording for ids that are not recorded. Equal lists have equal hashes, in every recording, so the
// hash of a short list can be guessed by trying.
struct IdsHash {
  enum class Of : uint16_t {
    kPrefill,     // of a new row: its tokens or embeddings
    kStopIds,     // of a new row
    kTokenLists,  // of a new row: allowed ids, bad words, biases
    kDrafts,      // of a step, all rows
    kMasks,       // of a row
    kSampled,     // of a row: tokens, and logprobs if there are any
    kProposed     // of a row: drafts of the device
  };
  RowId row = kNoRow;
  Of of = Of::kPrefill;
  uint16_t reserved = 0;
  int32_t count = 0;  // ids, or the words of a list
  int32_t reserved2 = 0;
  uint64_t hash = 0;
  bool operator==(const IdsHash&) const = default;
};
static_assert(sizeof(IdsHash) == 24);

// Takes all ids, logprobs, masks and vectors out of a message and appends their hashes. Shapes, counts, rows, blocks,
// pages and sampling parameters stay. Sampled tokens become zeros, so that their counts stay.
void hide_ids(SchedulerOutput& message, std::vector<IdsHash>& hashes);
void hide_ids(GrammarOutput& message, std::vector<IdsHash>& hashes);
void hide_ids(ModelRunnerOutput& message, std::vector<IdsHash>& hashes);

}  // namespace warprow
