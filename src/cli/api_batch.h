// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/output.h"
#include "server/api.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <istream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// `warprow run-batch`: lines of OpenAI's batch files, {"custom_id", "method", "url", "body"}, answered
// by the endpoints themselves without HTTP around them. A result, {"id", "custom_id", "response":
// {"status_code", "request_id", "body"}, "error"}, is written for each line, in the order of the lines
// and as soon as that order allows; so the lines of the output say how far a run has come. A line that
// is no request gets an error instead of a response. At most `look_ahead` lines are between reading
// and writing.
//
// Owns: the answers under way. Thread: run by one; answers wake it from the engine's.
class ApiBatch {
 public:
  ApiBatch(Api& api, Output& out, size_t look_ahead)
      : api_(api), out_(out), look_ahead_(look_ahead) {}

  struct Progress {
    int64_t num_lines = 0;   // written, those of earlier runs included
    int64_t num_failed = 0;  // of this run: with another status than 200, or no request
  };
  // Reads past the lines that an earlier run has answered. done: the custom ids of its results, which
  // must be those of the first lines (kInvalidArgument otherwise).
  Result<void> skip(std::istream& lines, const std::vector<std::string>& done);
  // on_progress is called after each wait; false stops.
  Progress run(std::istream& lines, const std::function<bool(const Progress&)>& on_progress);

 private:
  struct Item {
    int64_t line = 0;  // of the input, from 1
    std::string custom_id;
    std::string request_id;
    std::unique_ptr<Generation> generation;
    std::string result;  // empty until it is there
  };

  void read_ahead(std::istream& lines);
  void start(const std::string& text);
  void set_reply(Item& item, const HttpReply& reply);
  void set_error(Item& item, const std::string& message);
  void collect();
  void write_finished();
  void wait();

  Api& api_;
  Output& out_;
  size_t look_ahead_;
  std::deque<Item> window_;
  int64_t line_ = 0;  // read
  bool end_of_input_ = false;
  Progress progress_;

  std::mutex mutex_;
  std::condition_variable woken_;
  bool has_news_ = false;  // under mutex_
};

// What each line of results begins with.
inline constexpr std::string_view kBatchResultBegin = R"({"id":"batch_req_)";

// The custom_id of a line of either file, "" where it has none.
std::string batch_custom_id(const std::string& line);

}  // namespace warprow
