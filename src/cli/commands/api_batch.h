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

// `warprow run-batch`: answers the lines of an OpenAI batch file, {"custom_id", "method", "url", "body"}. It calls the
// endpoints directly, without HTTP. For each line it writes a result, {"id", "custom_id", "response": {"status_code",
// "request_id", "body"}, "error"}, in the order of the lines and as soon as that order allows. So the number of output
// lines is the progress of the run. A line that is not a request gets an error instead of a response. At most
// `look_ahead` lines are between reading and writing.
//
// Owns: the running answers. Thread: run on one; answers wake it from the engine's thread.
class ApiBatch {
 public:
  ApiBatch(Api& api, Output& out, size_t look_ahead)
      : api_(api), out_(out), look_ahead_(look_ahead) {}

  struct Progress {
    int64_t num_lines = 0;   // written, including those of earlier runs
    int64_t num_failed = 0;  // in this run: status other than 200, or not a request
  };
  // Skips the lines that an earlier run has answered. done: the custom ids of its results. They must be those of the
  // first lines, else kInvalidArgument.
  Result<void> skip(std::istream& lines, const std::vector<std::string>& done);
  // Calls on_progress after each wait. If it returns false, the run stops.
  Progress run(std::istream& lines, const std::function<bool(const Progress&)>& on_progress);

 private:
  struct Item {
    int64_t line = 0;  // of the input, from 1
    std::string custom_id;
    std::string request_id;
    std::unique_ptr<Generation> generation;
    std::string result;  // empty until the answer is complete
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
  int64_t line_ = 0;  // number of lines read
  bool end_of_input_ = false;
  Progress progress_;

  std::mutex mutex_;
  std::condition_variable woken_;
  bool has_news_ = false;  // under mutex_
};

// The beginning of each result line.
inline constexpr std::string_view kBatchResultBegin = R"({"id":"batch_req_)";

// The custom_id of an input or result line; "" if it has none.
std::string batch_custom_id(const std::string& line);

}  // namespace warprow
