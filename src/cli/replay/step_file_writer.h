// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/replay/step_file.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace warprow {

inline constexpr int64_t kMinStepFileBytes = int64_t{1} << 20;

// Writes a recording.
//
// Owns: the file. Thread: one at a time.
// Invariant: what a reader finds is whole records, whenever the process ends.
class StepFileWriter {
 public:
  // Makes a file of `max_bytes`, at least kMinStepFileBytes, that only this user can read. Blocks of the disk are taken
  // as it is filled. A recording of that name is renamed to NAME.old first; any other file is refused.
  static Result<StepFileWriter> create(const std::string& path,
                                       int64_t max_bytes,
                                       const std::string& description);

  StepFileWriter(StepFileWriter&& other) noexcept;
  StepFileWriter& operator=(StepFileWriter&&) = delete;
  StepFileWriter(const StepFileWriter&) = delete;
  StepFileWriter& operator=(const StepFileWriter&) = delete;
  ~StepFileWriter();

  // Appends a record over the oldest ones. Returns false if it is longer than the ring or the file cannot be written.
  bool append(StepMessage message,
              uint64_t number,
              std::span<const uint8_t> bytes,
              std::span<const IdsHash> hashes = {});

 private:
  StepFileWriter(int fd, size_t ring_begin, size_t ring_bytes)
      : fd_(fd), ring_begin_(ring_begin), ring_bytes_(ring_bytes) {}

  int fd_;
  size_t ring_begin_;
  size_t ring_bytes_;
  size_t at_ = 0;                // in the ring, of the next record
  std::vector<uint8_t> record_;  // keeps its capacity
};

}  // namespace warprow
