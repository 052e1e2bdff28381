// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/http_message.h"
#include "server/update_box.h"
#include "server/watch/request_journal.h"
#include "server/write/answer_writer.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// One request's answer under way: all its choices, from submission to the last byte.
//
// Owns: the engine's requests; they are aborted if this goes before they have ended. Thread: one at a
// time, but for wake. The engine outlives this, the journal outlives the engine.
class Generation {
 public:
  struct Form {
    bool stream = false;
    bool include_usage = false;
    std::string id{};           // the answer's
    const char* endpoint = "";  // for those who watch
    HttpHeaders headers{};
  };

  // Submits a request for each choice of each prompt; the journal has reserved their places. wake:
  // see UpdateBox.
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

  // Takes what came. For a stream the events to send now, else "".
  std::string take();
  // Nothing more will come.
  [[nodiscard]] bool finished() const { return failure_ || num_running_ == 0; }
  // The whole answer, once finished; not for a stream.
  HttpReply reply();
  // Ends it from outside, whatever the engine does: a stream's last events, else "".
  std::string give_up(ApiError error);

 private:
  void submit(ValidRequest request, const ChoiceRecord& record);

  Engine& engine_;
  std::unique_ptr<AnswerWriter> writer_;
  Form form_;
  std::shared_ptr<UpdateBox> box_;  // shared with the engine's callbacks, which may come late
  RequestJournal& journal_;
  std::vector<RequestId> ids_;
  std::vector<RequestUpdate> choices_;  // so far; a stream keeps only counts and reasons
  size_t num_running_ = 0;
  std::optional<ApiError> failure_;
};

}  // namespace warprow
