// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "engine/engine.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "warprow.h"

namespace warprow {

using SharedPrompt = std::shared_ptr<const std::vector<TokenId>>;

// What identifies an output within its queue.
struct OutputPlace {
  uint64_t request = 0;
  int32_t choice = 0;
  int32_t num_choices = 1;
  bool is_last = false;
};

// Logprobs in the form of warprow_logprobs.
class LogprobLists {
 public:
  explicit LogprobLists(const std::vector<LogprobEntry>& lists);
  [[nodiscard]] warprow_logprobs view() const;

 private:
  std::vector<warprow_logprob> entries_;
  std::vector<uint64_t> begins_;
};

// A warprow_output with all that its pointers point to.
class OutputData {
 public:
  OutputData(const OutputPlace& place, RequestUpdate update, SharedPrompt prompt);
  OutputData(const OutputData&) = delete;
  OutputData& operator=(const OutputData&) = delete;

  [[nodiscard]] warprow_output* view() { return &view_; }
  // The data of a view.
  static OutputData* of(warprow_output* view) { return reinterpret_cast<OutputData*>(view); }

 private:
  warprow_output view_{};  // first, for of()
  RequestUpdate update_;
  SharedPrompt prompt_;
  LogprobLists logprobs_;
  LogprobLists prompt_logprobs_;
};

}  // namespace warprow
