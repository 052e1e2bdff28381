// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "runner/ops/unpack_step.h"
#include "runner/staged_writes.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace warprow {

// The one upload of a step: its batch layout and its staged writes. They are written into a pinned ring entry,
// which the device reads in place. The layout is copied to one fixed device buffer. An entry is rewritten only
// after the step that used it is done.
//
//   head    i32 idx_mapping [max_num_seqs], query_start_loc [max_num_seqs + 1],
//           cu_num_logits [max_num_seqs + 1]
//   staged  StagedWrites::pack, only as long as its content
//
// Owns: the ring.
// Thread: the runner's.
class StepUpload {
 public:
  StepUpload(Arena& state, int32_t max_num_seqs);
  // Call once, before the first step, when all tables that staged writes reach are added.
  void make_ring(Device& device, int64_t max_staged_bytes, int32_t ring_size);

  // The counts for which an entry's tails were last written; the same counts give the same tails.
  struct Tails {
    int32_t num_rows = -1;
    int32_t num_toks = -1;
    int32_t num_logits = -1;
    bool operator==(const Tails&) const = default;
  };
  // Host pointers of the next entry.
  struct Entry {
    int32_t* output_entry = nullptr;
    int32_t* idx_mapping = nullptr;
    int32_t* query_start_loc = nullptr;
    int32_t* cu_num_logits = nullptr;
    std::byte* staged = nullptr;
    Tails* tails = nullptr;
  };
  // num_outstanding: steps whose results were not taken; the device has read the entries of all others.
  Entry begin(int32_t num_outstanding);
  // Hands the entry to the device: sets the addresses in `op` except for the staged tables.
  void submit(UnpackStep& op, const StagedWrites::Packed& packed);

  // Device addresses of the parts.
  [[nodiscard]] const int32_t* output_entry() const { return device_; }
  [[nodiscard]] const int32_t* idx_mapping() const { return device_ + kWords; }
  [[nodiscard]] const int32_t* query_start_loc() const { return idx_mapping() + max_num_seqs_; }
  [[nodiscard]] const int32_t* cu_num_logits() const {
    return query_start_loc() + max_num_seqs_ + 1;
  }

 private:
  static constexpr int64_t kWords = 4;  // of the whole step: output_entry, and padding
  [[nodiscard]] size_t head_bytes() const;

  int64_t max_num_seqs_;
  int64_t max_staged_bytes_ = 0;
  int32_t* device_;
  std::vector<PinnedBuffer> ring_;
  std::vector<Tails> tails_;  // by ring entry
  size_t next_ = 0;
};

}  // namespace warprow
