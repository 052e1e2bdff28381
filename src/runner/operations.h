// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace warprow {

// The named operations of a rank: requests to it other than steps. The code that implements one (the worker, the
// runner's features) adds it at start-up, so there is no central list.
//
// Owns: the functions. What they refer to must outlive this.
// Thread: the rank's. An operation runs between two steps and may wait for the device.
// Invariant: a name is added once.
class Operations {
 public:
  // Takes the argument that the name documents; the answer is passed on unchanged.
  using Operation = std::function<std::string(const std::string& argument)>;

  void add(std::string name, Operation operation) {
    const auto [at, added] = operations_.emplace(std::move(name), std::move(operation));
    WR_CHECK(added, "operation {} is added twice", at->first);
  }

  // nullopt for an unknown name. An operation may throw StartupError where its documentation says so.
  [[nodiscard]] std::optional<std::string> call(const std::string& name,
                                                const std::string& argument) const {
    const auto found = operations_.find(name);
    if (found == operations_.end()) {
      return std::nullopt;
    }
    return found->second(argument);
  }

 private:
  std::map<std::string, Operation> operations_;
};

}  // namespace warprow
