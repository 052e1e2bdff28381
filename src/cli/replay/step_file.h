// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/replay/ids_hash.h"
#include "files/mapped_file.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// A recording of steps: a file of fixed size whose newest records replace the oldest.
//
// Format, little endian, version 1: a StepFileHead, a description as JSON, and from the next multiple of
// kStepFileAlign on a ring of records. A record is a RecordHead, a message of a step (wire/serialize.h), and hashes of
// the ids that the message lacks. Each begins at a multiple of kRecordAlign; none is split at the ring's end. A reader
// looks for records everywhere in the ring and orders them by number, so the file is readable at any time: a record
// that was being written when the process ended has a wrong checksum.
namespace warprow {

inline constexpr size_t kStepFileAlign = 4096;
inline constexpr size_t kRecordAlign = 8;

struct StepFileHead {
  char magic[8] = {'w', 'r', 's', 't', 'e', 'p', 's', '\n'};
  uint32_t version = 1;
  uint32_t description_bytes = 0;
  uint64_t ring_bytes = 0;
  uint64_t checksum = 0;  // of the description
};

enum class StepMessage : uint16_t { kStep = 1, kGrammar = 2, kOutput = 3 };

struct RecordHead {
  uint32_t magic = 0xf1c3a5e7;  // as an id it would be negative
  StepMessage message = StepMessage::kStep;
  uint16_t reserved = 0;
  uint32_t message_bytes = 0;
  uint32_t num_hashes = 0;
  uint64_t number = 0;    // of the message since the recording began, lost ones included; from 1
  uint64_t checksum = 0;  // of the whole record with 0 here
};

// The place of the ring in a file whose description is so long.
[[nodiscard]] size_t ring_offset(size_t description_bytes);
[[nodiscard]] uint64_t record_checksum(std::span<const uint8_t> bytes);

// A message in the file.
struct StepFileRecord {
  StepMessage message = StepMessage::kStep;
  uint64_t number = 0;
  std::span<const uint8_t> bytes;  // of the message
  std::vector<IdsHash> hashes{};
};

// A recording as it is read.
//
// Owns: the mapping. Thread: const methods from any thread.
class StepFile {
 public:
  // Finds every whole record. kNotFound, kInvalidArgument: no such file. kCorrupt: no recording.
  static Result<StepFile> open(const std::string& path);

  [[nodiscard]] const std::string& description() const { return description_; }
  // In the order in which they were written. Where numbers are missing, messages were lost.
  [[nodiscard]] const std::vector<StepFileRecord>& records() const { return records_; }
  // Places where a record begins whose checksum is wrong.
  [[nodiscard]] int64_t num_damaged() const { return num_damaged_; }

 private:
  explicit StepFile(MappedFile file) : file_(std::move(file)) {}
  Result<void> read();
  void find_records(std::span<const uint8_t> ring);

  MappedFile file_;
  std::string description_;
  std::vector<StepFileRecord> records_;
  int64_t num_damaged_ = 0;
};

}  // namespace warprow
