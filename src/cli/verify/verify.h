// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/answer.h"
#include "cli/verify/verify_cases.h"
#include "cli/verify/verify_load.h"

#include <functional>
#include <memory>
#include <string>

namespace warprow {

// The outcome of `verify`.
struct VerifyReport {
  AnswerJson json;
  std::string text;
  bool held = false;  // no case differs
};

// Called with the tokens that have come so far, of all cases.
using VerifyProgress = std::function<void(int64_t num_tokens)>;
using LoadEngine = std::function<std::unique_ptr<Engine>(const EngineConfig& config)>;

// Runs the load alone, as the reference, and then under each case, each on an engine of its own. Errors: settings or
// requests that the engine refuses. Throws StartupError.
Result<VerifyReport> verify(const EngineConfig& config,
                            const VerifySizes& sizes,
                            const VerifyLoad& load,
                            const LoadEngine& load_engine,
                            const VerifyProgress& progress);

}  // namespace warprow
