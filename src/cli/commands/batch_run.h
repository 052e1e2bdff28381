// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "cli/commands/single_run.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/update_queue.h"
#include "engine/engine.h"

#include <deque>
#include <istream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace warprow {

// `warprow generate --prompts-file`: runs the lines through continuous batching and writes one JSON
// object for each, in the order of the lines and as soon as that order allows. The result of an invalid or failed line
// is {"error":{…}}. At most `look_ahead` lines are between reading and writing, so memory does not grow with the file.
//
// Owns: the lines in the window. Thread: one.
// Invariant: window_[i] is the line first_ + i, counted without empty lines. live_ holds the unfinished choices of the
// lines in the window.
class BatchRun {
 public:
  BatchRun(Engine& engine, UpdateQueue& updates, const RunOptions& options, Output& out);

  // defaults: for the options that a line omits. total: the number of lines for the progress bar; 0 if unknown.
  Result<ExitCode> run(std::istream& lines, const SamplingOptions& defaults, int64_t total);

 private:
  struct Line {
    std::vector<TokenId> prompt_token_ids;
    std::vector<Answer> answers;
    size_t num_running = 0;  // choices
    AnswerJson result;       // null until the line is finished
  };
  struct Choice {
    int64_t line = 0;
    size_t index = 0;
  };

  void read_ahead(std::istream& lines, const SamplingOptions& defaults);
  void start_line(const std::string& text, const SamplingOptions& defaults);
  void refuse(Line& line, const Error& error);
  void take_update();
  void finish(Line& line);
  void write_finished();
  void abort_all();
  void report(double seconds) const;

  Engine& engine_;
  UpdateQueue& updates_;
  RunOptions options_;
  Output& out_;
  size_t look_ahead_;

  std::deque<Line> window_;
  std::unordered_map<RequestId, Choice> live_;
  int64_t first_ = 0;        // lines written
  int64_t num_running_ = 0;  // unfinished lines
  int64_t line_number_ = 0;  // lines read from the file, including empty lines
  int64_t num_failed_ = 0;
  int64_t num_output_tokens_ = 0;
  bool end_of_input_ = false;
};

}  // namespace warprow
