// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A file of results, a line each, that a run adds to and the next run goes on with.
//
// Owns: the descriptor and the lock on the file. Thread: one.
class ResultFile {
 public:
  // Opens or makes the file and locks it; what is in it stays as it is. beginning: of each result, which
  // tells a file of them from another. key_of: what to remember of each line. kNotFound: it cannot be
  // written; kInvalidArgument: another process writes to it, or it holds something else.
  static Result<ResultFile> open(const std::string& path,
                                 std::string_view beginning,
                                 const std::function<std::string(const std::string&)>& key_of);
  ResultFile(ResultFile&& other) noexcept;
  ResultFile& operator=(ResultFile&&) = delete;
  ~ResultFile();

  [[nodiscard]] int fd() const { return fd_; }
  // The keys of the whole lines that were there when it was opened.
  [[nodiscard]] const std::vector<std::string>& keys() const { return keys_; }
  // Takes away a line that was cut off, because its writer was killed. Before the first write.
  Result<void> drop_cut_line();

 private:
  explicit ResultFile(int fd) : fd_(fd) {}

  int fd_;
  std::vector<std::string> keys_;
  std::optional<int64_t> whole_bytes_;  // before the line that was cut off; none: there is none
};

}  // namespace warprow
