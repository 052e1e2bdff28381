// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

namespace warprow {

// Where `warprow chat` takes its lines from.
class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kSignal };

  virtual ~LineReader() = default;
  // The next line without its end. kSignal: a signal interrupted the wait and the line typed so far
  // is dropped.
  virtual Outcome read(std::string& line) = 0;
};

// On a terminal: editing and history, by libedit. The prompt goes to stderr.
std::unique_ptr<LineReader> make_terminal_reader(const char* prompt);

// From a pipe or a file: plain lines, nothing printed.
std::unique_ptr<LineReader> make_plain_reader();

}  // namespace warprow
