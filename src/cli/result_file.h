// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <functional>
#include <string>
#include <vector>

namespace warprow {

// A file of results, a line each, that a run adds to and the next run goes on with. A line that was cut
// off, because its writer was killed, is taken away when the file is opened.
//
// Owns: the descriptor and the lock on the file. Thread: one.
class ResultFile {
 public:
  // Opens or makes the file and locks it. key_of: what to remember of each line. kNotFound: it cannot
  // be written; kInvalidArgument: another process writes to it.
  static Result<ResultFile> open(const std::string& path,
                                 const std::function<std::string(const std::string&)>& key_of);
  ResultFile(ResultFile&& other) noexcept;
  ResultFile& operator=(ResultFile&&) = delete;
  ~ResultFile();

  [[nodiscard]] int fd() const { return fd_; }
  // The keys of the whole lines that were there when it was opened.
  [[nodiscard]] const std::vector<std::string>& keys() const { return keys_; }

 private:
  explicit ResultFile(int fd) : fd_(fd) {}

  int fd_;
  std::vector<std::string> keys_;
};

}  // namespace warprow
