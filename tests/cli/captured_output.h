// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/output.h"

#include <cstdio>
#include <string>
#include <unistd.h>

namespace warprow {

// An Output into a temporary file. Returns what was written.
class CapturedOutput {
 public:
  CapturedOutput() : file_(std::tmpfile()), output_(fileno(file_)) {}
  ~CapturedOutput() { std::fclose(file_); }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  Output& output() { return output_; }
  [[nodiscard]] std::string text() const {
    std::string out(65536, '\0');
    const ssize_t n = pread(fileno(file_), out.data(), out.size(), 0);
    out.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return out;
  }

 private:
  std::FILE* file_;
  Output output_;
};

}  // namespace warprow
