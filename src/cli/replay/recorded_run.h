// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"
#include "executor/executor.h"

#include <string>

namespace warprow {

// The description in a recording's file: the run that was recorded.
struct RecordedRun {
  std::string version;      // of warprow
  bool with_ids = false;    // the messages have their ids
  uint64_t model_hash = 0;  // model_hash() of its weights
  std::string backends;     // of attention, as ReadAttentionBackends names them
  EngineConfig config;      // as the user gave it, but `model` is absolute if it is a path
  ModelFacts facts;         // without the shapes of the KV cache beyond kind, window and block size
};

[[nodiscard]] std::string describe(const RecordedRun& run);
// kCorrupt if a member is missing or of another type. A setting that this build does not have is ignored.
[[nodiscard]] Result<RecordedRun> read_description(const std::string& text);

// A hash of names, types, shapes and the first bytes of all tensors, so that models of one architecture differ; 0 for
// dummy weights. Reads headers and a page for each tensor. Errors: as for loading.
[[nodiscard]] Result<uint64_t> model_hash(const EngineConfig& config);

}  // namespace warprow
