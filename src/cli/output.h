// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string_view>

namespace warprow {

// A file descriptor that answers are written to at once, piece by piece, without a buffer. A reader
// that has gone away
// (`| head`) is no error: it has had what it wanted, and the program ends quietly. SIGPIPE must be
// ignored.
//
// Thread: one at a time.
class Output {
 public:
  explicit Output(int fd);

  // False once nothing more can be written; status() says whether that is a failure.
  bool write(std::string_view text);
  // Ends the line that is under way, if any.
  bool end_line();

  [[nodiscard]] bool closed() const { return errno_ != 0; }
  [[nodiscard]] bool is_terminal() const { return is_terminal_; }
  // The failure of a write, a closed reader aside.
  [[nodiscard]] Result<void> status() const;

 private:
  int fd_;
  bool is_terminal_;
  bool in_line_ = false;
  int errno_ = 0;
};

}  // namespace warprow
