// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/bench/serve_load.h"
#include "cli/bench/serve_prompts.h"
#include "cli/simulate/arrival_trace.h"

#include <string>

namespace warprow {

// The requests that `bench serve` would send with these flags, at the same times. Of random prompts only the lengths are
// drawn; those of a file are encoded as the server would, with the model's tokenizer and chat template.
Result<ArrivalTrace> trace_of_prompts(const ServeDataset& dataset,
                                      const ServeLoad& load,
                                      const std::string& model);

}  // namespace warprow
