// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/bench/serve_prompts.h"
#include "client/event_stream.h"
#include "client/http_client.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// The options of a load on a server.
struct ServeLoad {
  std::string endpoint = "/v1/completions";  // a path with "chat" in it gets messages
  std::string model;
  double request_rate = std::numeric_limits<double>::infinity();  // per second
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0: no limit
  int64_t seed = 0;             // of the arrivals
  bool ignore_eos = false;
  nlohmann::json extra_body = nlohmann::json::object();  // overrides the other fields
};

// The client's measurements of one request, in seconds since its start. A request starts when it is sent, not when it
// would have been sent without --max-concurrency.
struct ServeRecord {
  double start_s = 0;             // since the start of the load
  double ttft_s = 0;              // to the first piece of the answer
  double latency_s = 0;           // to the last piece
  std::vector<double> itls_s{};   // between pieces
  int64_t num_input_tokens = 0;   // from the server's usage
  int64_t num_output_tokens = 0;  // from the server's usage, else the number of pieces
  std::string text{};
  std::string error{};  // empty: success
};

struct ServeRecords {
  std::vector<ServeRecord> requests;  // in the order of the prompts
  double duration_s = 0;
  int64_t max_concurrent = 0;
};

// The request body for a prompt. In a chat the prompt's messages are sent unchanged; text becomes one user message.
nlohmann::json request_body(const ServeLoad& load, const ServePrompt& prompt);

// Reads the events of one streamed response, of completions or of chat.
//
// A piece is a chunk with text, reasoning or tool calls. A chunk without them is a piece too, except a chunk with only
// the role, and the end chunk after an earlier piece. So a server that sends the role with the first text and one that
// sends it separately get the same measurements.
class AnswerTimes {
 public:
  // now_s: seconds since the request's start.
  void read(std::string_view piece, double now_s, ServeRecord& record);

 private:
  void read_event(std::string_view data, double now_s, ServeRecord& record);

  EventStream events_;
  double last_s_ = 0;
  int64_t num_pieces_ = 0;
};

// Sends the prompts according to the load and waits for all answers. on_progress: called after each answer with the
// number of answers and of their tokens.
ServeRecords run_serve_load(HttpClient& client,
                            const ServeLoad& load,
                            const std::vector<ServePrompt>& prompts,
                            const std::function<void(int64_t, int64_t)>& on_progress);

}  // namespace warprow
