// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/serve_prompts.h"
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

// How a load is put on a server.
struct ServeLoad {
  std::string endpoint = "/v1/completions";  // a path with "chat" in it gets messages
  std::string model;
  double request_rate = std::numeric_limits<double>::infinity();  // a second
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0: no limit
  int64_t seed = 0;             // of the arrivals
  bool ignore_eos = false;
  nlohmann::json extra_body = nlohmann::json::object();  // wins over our fields
};

// One request as the client saw it; seconds since its start, which is when it was sent, not when it
// would have been without --max-concurrency.
struct ServeRecord {
  double start_s = 0;             // since the start of the load
  double ttft_s = 0;              // to the first piece of the answer
  double latency_s = 0;           // to the last one
  std::vector<double> itls_s{};   // between pieces
  int64_t num_input_tokens = 0;   // as the server counted
  int64_t num_output_tokens = 0;  // as the server counted, else the pieces
  std::string text{};
  std::string error{};  // empty: done
};

struct ServeRecords {
  std::vector<ServeRecord> requests;  // in the order of the prompts
  double duration_s = 0;
  int64_t max_concurrent = 0;
};

// The body of the request for a prompt. What the prompt is decides over the chat's form.
nlohmann::json request_body(const ServeLoad& load, const ServePrompt& prompt);

// Reads the events of one answer, of completions or of chat.
//
// A piece is a chunk that carries text, or none but is neither the chat's role alone nor the end alone:
// so a server that says role and first word at once, or apart, measures the same.
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

// Sends the prompts as the load says and waits for all answers. on_progress: after each answer, with
// the number of answers and of their tokens.
ServeRecords run_serve_load(HttpClient& client,
                            const ServeLoad& load,
                            const std::vector<ServePrompt>& prompts,
                            const std::function<void(int64_t, int64_t)>& on_progress);

}  // namespace warprow
