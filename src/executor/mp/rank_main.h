// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// The command line of a rank process: `rank RANK TENSOR_SIZE PIPELINE_SIZE`.
struct RankArguments {
  int32_t rank = 0;
  int32_t tensor_size = 1;
  int32_t pipeline_size = 1;

  [[nodiscard]] std::vector<std::string> words() const;
  // nullopt for any other command line.
  static std::optional<RankArguments> parse(const std::vector<std::string>& words);
};

// Wraps the rank's own executor, for tests: one that fails.
using WrapRank = std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)>;

// The whole life of a rank process, which RankProcess started: reads the settings from the executor, builds the rank,
// runs its steps. Returns the exit code (RankExit). A program that is its own `worker-binary`, which is the default,
// calls this when RankArguments::parse accepts its arguments.
int rank_main(const RankArguments& arguments, const WrapRank& wrap = {});

}  // namespace warprow
