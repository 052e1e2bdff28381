// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/answer_writer.h"
#include "server/http_message.h"
#include "server/update_box.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// One request's answer under way: all its choices, from submission to the last byte.
//
// Owns: the engine's requests; they are aborted if this goes before they have ended. Thread: one, but
// for wake. The engine outlives this.
class Generation {
 public:
  struct Form {
    bool stream = false;
    bool include_usage = false;
    HttpHeaders headers{};
  };

  // Submits the request. wake: see UpdateBox.
  Generation(Engine& engine,
             const ValidRequest& request,
             std::unique_ptr<AnswerWriter> writer,
             Form form,
             std::function<void()> wake);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  [[nodiscard]] bool is_stream() const { return form_.stream; }
  [[nodiscard]] const HttpHeaders& headers() const { return form_.headers; }

  // Takes what came. For a stream the events to send now, else "".
  std::string take();
  // Nothing more will come.
  [[nodiscard]] bool finished() const { return failure_ || num_running_ == 0; }
  // The whole answer, once finished; not for a stream.
  HttpReply reply();

 private:
  Engine& engine_;
  std::unique_ptr<AnswerWriter> writer_;
  Form form_;
  std::shared_ptr<UpdateBox> box_;  // shared with the engine's callbacks, which may come late
  std::vector<RequestId> ids_;
  std::vector<RequestUpdate> choices_;  // so far; a stream keeps only counts and reasons
  size_t num_running_;
  std::optional<ApiError> failure_;
};

}  // namespace warprow
