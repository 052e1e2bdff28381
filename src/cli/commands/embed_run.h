// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/commands/vector_format.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/update_queue.h"
#include "engine/engine.h"
#include "engine/pooling.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <istream>
#include <string>
#include <unordered_map>

namespace warprow {

// `warprow embed`: runs the lines of a file and writes a result for each, in the order of the lines and as soon as that
// order allows. At most `look_ahead` lines are between reading and writing.
//
// Owns: the lines in the window. Thread: one.
class EmbedRun {
 public:
  EmbedRun(Engine& engine,
           UpdateQueue& updates,
           const PoolingRequest& defaults,
           const VectorFormat& format,
           Output& out);

  // total: the number of lines for the progress bar; 0 if unknown.
  Result<ExitCode> run(std::istream& lines, int64_t total);
  // The number of results that were written.
  [[nodiscard]] int64_t num_written() const { return first_; }

 private:
  void read_ahead(std::istream& lines);
  void start_line(const std::string& text);
  void take_update();
  void refuse(int64_t line, const Error& error);
  void write_finished();

  Engine& engine_;
  UpdateQueue& updates_;
  PoolingRequest defaults_;
  const VectorFormat& format_;
  Output& out_;
  size_t look_ahead_;

  std::deque<std::string> window_;               // results; empty until a line is finished
  std::unordered_map<RequestId, int64_t> live_;  // the number of its line
  int64_t first_ = 0;                            // lines written
  int64_t num_tokens_ = 0;
  int64_t num_failed_ = 0;
  bool end_of_input_ = false;
};

}  // namespace warprow
