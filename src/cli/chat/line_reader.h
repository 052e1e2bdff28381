// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

namespace warprow {

// The source of input lines of `warprow chat`.
class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kSignal };

  virtual ~LineReader() = default;
  // Reads the next line, without its line end. kSignal: a signal interrupted the wait, and the partial line is dropped.
  virtual Outcome read(std::string& line) = 0;
};

// For a terminal: editing and history with libedit. The prompt goes to stderr.
std::unique_ptr<LineReader> make_terminal_reader(const char* prompt);

// For a pipe or a file: plain lines without a prompt.
std::unique_ptr<LineReader> make_plain_reader();

}  // namespace warprow
