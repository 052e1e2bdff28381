// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string_view>

namespace warprow {

// Writes answers to a file descriptor, piece by piece, without a buffer. A pipe whose reader has closed it (`| head`)
// is not an error: the program ends without a message. SIGPIPE must be ignored.
//
// Thread: one at a time.
class Output {
 public:
  explicit Output(int fd);

  // False after writes have become impossible. status() says whether that is an error.
  bool write(std::string_view text);
  // Ends the current line, if any.
  bool end_line();

  [[nodiscard]] bool closed() const { return errno_ != 0; }
  [[nodiscard]] bool is_terminal() const { return is_terminal_; }
  // The error of a failed write. A closed pipe is not an error.
  [[nodiscard]] Result<void> status() const;

 private:
  int fd_;
  bool is_terminal_;
  bool in_line_ = false;
  int errno_ = 0;
};

}  // namespace warprow
