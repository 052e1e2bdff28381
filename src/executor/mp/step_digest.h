// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "wire/model_runner_output.h"

#include <cstdint>
#include <string>

namespace warprow {

// Hashes of a rank's results of a step, on the last stage. They must be equal on all of its ranks, or the run is invalid:
// contracts.tensor-parallel.
struct StepDigest {
  int64_t step = 0;
  uint64_t rows = 0;  // row, generation, counts and failure of each
  uint64_t token_ids = 0;
  uint64_t draft_token_ids = 0;
  bool operator==(const StepDigest&) const = default;
};

StepDigest digest_of(const ModelRunnerOutput& output);

// How two ranks differ: "step 12: token_ids is 4b1c... on rank 0 and 9a00... on rank 1"; "" if they do not.
std::string difference(const StepDigest& first,
                       int32_t first_rank,
                       const StepDigest& second,
                       int32_t second_rank);

}  // namespace warprow
