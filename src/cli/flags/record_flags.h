// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flags/flag_set.h"
#include "config/engine_config.h"
#include "executor/executor.h"

#include <cstdint>
#include <memory>
#include <string>

namespace warprow {

// --record-steps and what belongs to it.
struct RecordFlags {
  std::string path;  // empty: nothing is recorded
  int64_t max_bytes = int64_t{64} << 20;
  bool with_ids = false;
};

void add_record_flags(FlagSet& flags, const char* group, RecordFlags& record);
// Flags without the file that they are for are an error.
Result<void> check_record_flags(const RecordFlags& record);

// The executor itself if nothing is to be recorded; else one that records its steps. Throws StartupError.
std::unique_ptr<Executor> record_steps(std::unique_ptr<Executor> executor,
                                       const EngineConfig& config,
                                       const RecordFlags& record,
                                       const std::string& version);

}  // namespace warprow
