// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "wire/model_runner_output.h"

#include <string>

namespace warprow {

// The first difference between two outputs of one row in words, "token 0 is 1234 instead of 99"; "" if tokens,
// failures, logprobs and proposed drafts are equal to the last bit. Each row is one of the message before it.
std::string row_difference(const ModelRunnerOutput& recorded,
                           const RowOutput& recorded_row,
                           const ModelRunnerOutput& got,
                           const RowOutput& got_row);

}  // namespace warprow
