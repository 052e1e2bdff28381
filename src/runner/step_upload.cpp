// SPDX-License-Identifier: Apache-2.0
#include "runner/step_upload.h"

#include "base/check.h"
#include "base/math.h"

namespace warprow {

StepUpload::StepUpload(Arena& state, int32_t max_num_seqs)
    : max_num_seqs_(max_num_seqs),
      device_(reinterpret_cast<int32_t*>(state.alloc_bytes(head_bytes()))) {}

void StepUpload::make_ring(Device& device, int64_t max_staged_bytes, int32_t ring_size) {
  max_staged_bytes_ = max_staged_bytes;
  tails_.resize(static_cast<size_t>(ring_size));
  for (int32_t i = 0; i < ring_size; ++i) {
    ring_.push_back(device.make_pinned(head_bytes() + static_cast<size_t>(max_staged_bytes)));
  }
}

size_t StepUpload::head_bytes() const {
  return static_cast<size_t>(round_up<int64_t>(
      (kWords + 3 * max_num_seqs_ + 2) * static_cast<int64_t>(sizeof(int32_t)), 16));
}

StepUpload::Entry StepUpload::begin(int32_t num_outstanding) {
  // The previous use of this entry was as many steps ago as the ring is long.
  WR_CHECK_LT(num_outstanding, ring_.size());
  auto* words = ring_[next_].as<int32_t>();
  int32_t* rows = words + kWords;
  return {words,
          rows,
          rows + max_num_seqs_,
          rows + 2 * max_num_seqs_ + 1,
          ring_[next_].data() + head_bytes(),
          &tails_[next_]};
}

void StepUpload::submit(UnpackStep& op, const StagedWrites::Packed& packed) {
  WR_CHECK_LE(packed.bytes, max_staged_bytes_);
  const PinnedBuffer& entry = ring_[next_];
  const size_t head = head_bytes();
  op.from = entry.as<int32_t>();
  op.to = device_;
  op.num_words = static_cast<int64_t>(head / sizeof(int32_t));
  op.staged.groups = entry.as<StagedGroup>(head);
  op.staged.writes = entry.as<StagedWrite>(head + static_cast<size_t>(packed.writes_offset));
  op.staged.values = entry.as<int32_t>(head + static_cast<size_t>(packed.values_offset));
  next_ = (next_ + 1) % ring_.size();
}

}  // namespace warprow
