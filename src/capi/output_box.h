// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capi/output_data.h"
#include "warprow.h"

namespace warprow {

// Passes updates from the engine's output thread to those that wait on a queue. Updates of a choice that are not taken
// yet are joined into one, so a slow reader costs at most the memory of its own answers.
//
// Thread: any. Callbacks share ownership, because they may outlive the queue.
class OutputBox {
 public:
  // A request whose choices are submitted next. each_update: outputs as they come, else one for each choice. Returns its
  // number.
  uint64_t open(SharedPrompt prompt, size_t num_choices, bool each_update);
  // The engine's numbers of its choices, once they are submitted. false: closed meanwhile, so they are to be aborted.
  bool name_choices(uint64_t request, const std::vector<RequestId>& ids);

  void push(uint64_t request, size_t choice, const RequestUpdate& update);

  // As warprow_queue_wait, without last errors.
  std::pair<warprow_status, std::unique_ptr<OutputData>> wait(int64_t timeout_ms);

  // The engine's numbers of the choices that may still run: of a request, or of all.
  std::vector<RequestId> running(uint64_t request);
  std::vector<RequestId> running();
  // Ends all waits and drops what comes.
  void close();
  [[nodiscard]] bool is_closed();

 private:
  struct Choice {
    RequestUpdate news;
    RequestId id = 0;
    bool is_ready = false;  // in ready_
    bool has_ended = false;
  };
  struct Live {
    SharedPrompt prompt;
    std::vector<Choice> choices;
    size_t num_untaken;  // choices whose last output was not taken
    bool each_update;
  };

  std::unique_ptr<OutputData> take();

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::unordered_map<uint64_t, Live> live_;
  std::deque<std::pair<uint64_t, size_t>> ready_;  // request, choice
  uint64_t next_request_ = 1;
  bool closed_ = false;
};

}  // namespace warprow
