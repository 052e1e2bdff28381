// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"
#include "executor/executor.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

// What the executor and its rank processes send each other, beside the messages of a step (wire/serialize.h). Both
// ends are the same build.
namespace warprow {

// From the executor to all ranks.
enum class ToRank : uint32_t {
  kStart = 1,      // RankStart
  kStep,           // SchedulerOutput; kSample follows
  kStepAndSample,  // SchedulerOutput of a step without masks: both phases
  kSample,         // GrammarOutput
  kCall,           // RankCall
  kStop,           // nothing: end in order
};

// From a rank to the executor.
enum class FromRank : uint32_t {
  kReady = 1,    // RankReady; from the output rank. Other ranks send it empty
  kStartFailed,  // RankFailure
  kOutput,       // ExecutorStats, then ModelRunnerOutput; from the output rank
  kReply,        // RankReply
  kDigest,  // StepDigest of each step; from all ranks of the last stage that a launcher started
  kForwardDone,  // i64 step, as RankState::forward_done; only from a rank whose state is not in shared memory
};

struct RankStart {
  EngineConfig config;
};

struct RankReady {
  ModelFacts facts;
  int32_t max_concurrent_batches = 1;
  std::string device;  // cpu | cuda
};

struct RankFailure {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

// An operation, for one rank or for all.
struct RankCall {
  uint64_t id = 0;
  int32_t rank = -1;  // -1: all
  std::string operation;
  std::string argument;
};
struct RankReply {
  uint64_t id = 0;
  bool failed = false;  // by a StartupError of this code; text is its message
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
};

// Replace the content of `bytes`.
void encode(const RankStart& message, std::vector<uint8_t>& bytes);
void encode(const RankReady& message, std::vector<uint8_t>& bytes);
void encode(const RankFailure& message, std::vector<uint8_t>& bytes);
void encode(const RankCall& message, std::vector<uint8_t>& bytes);
void encode(const RankReply& message, std::vector<uint8_t>& bytes);
// A check fails for bytes that encode did not write.
void decode(std::span<const uint8_t> bytes, RankStart& message);
void decode(std::span<const uint8_t> bytes, RankReady& message);
void decode(std::span<const uint8_t> bytes, RankFailure& message);
void decode(std::span<const uint8_t> bytes, RankCall& message);
void decode(std::span<const uint8_t> bytes, RankReply& message);

}  // namespace warprow
