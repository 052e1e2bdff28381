// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "executor/executor.h"
#include "sched/scheduler.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A LoRA adapter that requests may name.
struct LoadedAdapter {
  int32_t id = -1;  // never used again, so cached prefixes never meet those of another adapter
  std::string name;
  std::string path;
  uint64_t loaded_at = 0;  // seconds since 1970
};

// "a=/x,b=/y" as adapters; kInvalidArgument names the part that is not NAME=DIRECTORY.
Result<std::vector<LoadedAdapter>> parse_lora_modules(std::string_view text);

// The adapters by name. To load one, call begin, then poll until it returns true or an error. An adapter is loaded when
// every rank has read its part. If a rank cannot read its part, all ranks drop theirs.
//
// Owns: the list.
// Thread: find and list any; the rest the engine's, between two steps.
// Invariant: the scheduler knows the adapters of the list, and those that were unloaded while requests used them.
class Adapters {
 public:
  Adapters(Executor& executor, Scheduler& scheduler, const ModelFacts& facts)
      : executor_(executor), scheduler_(scheduler), facts_(facts) {}

  [[nodiscard]] std::optional<LoadedAdapter> find(std::string_view name) const;
  [[nodiscard]] std::vector<LoadedAdapter> list() const;  // in the order of loading

  // Its number. Errors: no adapters here; a name that is taken; no place.
  Result<int32_t> begin(const std::string& name, const std::string& path);
  // True: requests may name the adapter. False: ranks still read it, or wait for the place of an adapter that was
  // unloaded. Error: why it cannot be loaded.
  Result<bool> poll(int32_t id);
  // Requests that have the adapter go on. kNotFound.
  Result<void> unload(const std::string& name);

 private:
  void release_unused();

  Executor& executor_;
  Scheduler& scheduler_;
  const ModelFacts& facts_;
  int32_t next_id_ = 0;
  std::vector<LoadedAdapter> loading_;
  std::vector<int32_t> leaving_;  // unloaded, still in use
  mutable std::mutex mutex_;
  std::vector<LoadedAdapter> loaded_;  // under mutex_
};

}  // namespace warprow
