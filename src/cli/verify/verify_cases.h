// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/verify/verify_load.h"
#include "config/engine_config.h"
#include "engine/engine.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace warprow {

// How a case gives its requests to the engine.
enum class VerifyOrder : uint8_t {
  kAlone,       // one after the other
  kTogether,    // all at once
  kStaggered,   // the next one when some tokens have come
  kNeighbours,  // all at once, among as many others that are aborted soon
  kTwice,       // all at once, twice; the second answers count
  kAfterSleep,  // all at once, after a sleep and a wake-up
};

// What a case may depend on.
struct VerifySizes {
  bool on_gpu = false;
  int64_t state_blocks = 0;  // KV blocks that a row may need for states; 0: no layer keeps one
  int64_t block_bytes = 0;   // of a KV block
  int64_t max_len = 0;       // longest prompt and output together
};

// One promise: the same answers under other conditions.
struct VerifyCase {
  const char* name;
  const char* condition;  // "with ..."
  VerifyOrder order;
  // Changes the settings; false: the case does not apply to this device or these settings.
  bool (*set)(EngineConfig& config, const VerifySizes& sizes);
  // A counter that must have moved, or the condition did not occur; null: it always does.
  int64_t (*proof)(const EngineStats& stats);
};
std::span<const VerifyCase> verify_cases();

// The settings of the reference: no prefix from a cache, no drafts. Its requests run alone.
EngineConfig reference_config(EngineConfig config, const VerifySizes& sizes);

// Runs the requests. Calls on_tokens with the number of tokens of each update.
Result<std::vector<VerifyAnswer>> run_case(Engine& engine,
                                           VerifyOrder order,
                                           const std::vector<GenerationRequest>& requests,
                                           const std::function<void(int64_t)>& on_tokens);

}  // namespace warprow
