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

// A file of results, one per line. A run appends to it, and the next run continues it.
//
// Owns: the descriptor and the lock on the file. Thread: one.
class ResultFile {
 public:
  // Opens or creates the file and locks it; the contents stay unchanged. beginning: the text at the start of each
  // result, which identifies a file of results. key_of: the key to keep for each line. kNotFound: the file cannot be
  // written. kInvalidArgument: another process writes to the file, or it has other contents.
  static Result<ResultFile> open(const std::string& path,
                                 std::string_view beginning,
                                 const std::function<std::string(const std::string&)>& key_of);
  ResultFile(ResultFile&& other) noexcept;
  ResultFile& operator=(ResultFile&&) = delete;
  ~ResultFile();

  [[nodiscard]] int fd() const { return fd_; }
  // The keys of the complete lines that the file had when it was opened.
  [[nodiscard]] const std::vector<std::string>& keys() const { return keys_; }
  // Removes an incomplete last line, left by a killed writer. Call it before the first write.
  Result<void> drop_cut_line();

 private:
  explicit ResultFile(int fd) : fd_(fd) {}

  int fd_;
  std::vector<std::string> keys_;
  std::optional<int64_t> whole_bytes_;  // bytes before the incomplete line; nullopt: no such line
};

}  // namespace warprow
