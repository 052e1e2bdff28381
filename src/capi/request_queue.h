// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/beam_search.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capi/loaded_engine.h"
#include "capi/output_box.h"
#include "warprow.h"

namespace warprow {

// The functions of a warprow_queue.
//
// Thread: any.
class RequestQueue {
 public:
  explicit RequestQueue(std::shared_ptr<LoadedEngine> engine)
      : engine_(std::move(engine)), box_(std::make_shared<OutputBox>()) {}
  ~RequestQueue() { close(); }
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  // embeds: of the body's prompt, or null.
  warprow_status submit(std::string_view body, PromptEmbeds embeds, uint64_t& request);
  warprow_status cancel(uint64_t request);
  warprow_status wait(int64_t timeout_ms, warprow_output*& output);
  void close();

 private:
  warprow_status submit_choices(Served& served,
                                std::vector<ValidRequest> choices,
                                bool each_update,
                                uint64_t& request);
  warprow_status submit_beams(Served& served,
                              const GenerationRequest& request,
                              const BeamOptions& options,
                              uint64_t& number);
  void abort_searches(std::optional<uint64_t> request);

  std::shared_ptr<LoadedEngine> engine_;
  std::shared_ptr<OutputBox> box_;                          // shared with the engine's callbacks
  std::mutex mutex_;                                        // guards searches_
  std::map<uint64_t, std::weak_ptr<BeamSearch>> searches_;  // by request
};

// The text of a chat's prompt.
warprow_status render_body(Served& served, std::string_view body, std::string& text);

}  // namespace warprow
