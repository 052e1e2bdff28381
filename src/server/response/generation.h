// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/http_message.h"
#include "server/metrics/request_journal.h"
#include "server/response/answer_writer.h"
#include "server/response/update_box.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// The answer to one HTTP request: all its choices, from submission to the last byte.
//
// Owns: the engine's requests; the destructor aborts those that have not ended. Thread: one at a
// time, except for wake. The engine outlives this, the journal outlives the engine.
class Generation {
 public:
  struct Form {
    bool stream = false;
    bool include_usage = false;
    std::string id{};           // the answer's
    std::string owner{};        // ChoiceRecord::owner
    const char* endpoint = "";  // for the journal and the trace
    HttpHeaders headers{};
    std::shared_ptr<const RequestTrace> trace{};  // null: no spans are made
  };

  // Submits an engine request for each choice of each prompt. The journal must have reserved their places. wake: see
  // UpdateBox.
  Generation(Engine& engine,
             const std::vector<ValidRequest>& prompts,
             std::unique_ptr<AnswerWriter> writer,
             Form form,
             RequestJournal& journal,
             std::function<void()> wake);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  [[nodiscard]] bool is_stream() const { return form_.stream; }
  [[nodiscard]] const HttpHeaders& headers() const { return form_.headers; }

  // Takes the new updates. Returns the events to send now if this is a stream, else "".
  std::string take();
  // No more updates will follow.
  [[nodiscard]] bool finished() const { return failure_ || num_running_ == 0; }
  // The complete answer, once finished. Not for a stream.
  HttpReply reply();
  // Ends the answer with this error, whatever the engine does. Returns a stream's last events, else "".
  std::string give_up(ApiError error);

 private:
  void submit(ValidRequest request, const ChoiceRecord& record);

  Engine& engine_;
  std::unique_ptr<AnswerWriter> writer_;
  Form form_;
  std::shared_ptr<UpdateBox> box_;  // shared with engine callbacks, which may outlive this
  RequestJournal& journal_;
  std::vector<RequestId> ids_;
  std::vector<RequestUpdate> choices_;  // joined so far; a stream keeps only counts and reasons
  size_t num_running_ = 0;
  std::optional<ApiError> failure_;
};

}  // namespace warprow
