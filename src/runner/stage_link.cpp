// SPDX-License-Identifier: Apache-2.0
#include "runner/stage_link.h"

namespace warprow {
namespace {

size_t bytes_of(const View<float, 2>& rows) {
  return static_cast<size_t>(rows.shape[0] * rows.shape[1]) * sizeof(float);
}

}  // namespace

StageLink::StageLink(Arena& workspace, const StepLimits& limits, const RankGroup& stages)
    : stages_(stages),
      max_drafts_(limits.max_drafts),
      expected_(static_cast<size_t>(limits.max_steps_in_flight)) {
  if (!stages.alone()) {
    const int64_t stride = StageResult::kWords + max_drafts_;
    results_ = {workspace.alloc<int32_t>(limits.max_num_seqs * stride), stride};
  }
}

int64_t StageLink::result_bytes(int64_t num_rows, int32_t max_drafts) {
  return num_rows * (StageResult::kWords + max_drafts) * static_cast<int64_t>(sizeof(int32_t));
}

void StageLink::receive_results(Stream& stream,
                                RunnerOps& ops,
                                const RequestRows& rows,
                                int64_t through) {
  while (num_received_ < num_expected_ &&
         expected_[num_received_ % expected_.size()].step <= through) {
    receive_next(stream, ops, rows);
  }
}

void StageLink::receive_next(Stream& stream, RunnerOps& ops, const RequestRows& rows) {
  const int64_t num_rows = expected_[num_received_++ % expected_.size()].num_rows;
  stages_.comm->receive(stream,
                        reinterpret_cast<std::byte*>(results_.words),
                        static_cast<size_t>(result_bytes(num_rows, max_drafts_)),
                        stages_.place.size - 1);
  ops.apply_results(stream, {results_, rows.states(), rows.drafts()}, num_rows);
}

void StageLink::receive_residual(Stream& stream, const View<float, 2>& residual) const {
  if (!is_first() && residual.shape[0] > 0) {
    stages_.comm->receive(stream,
                          reinterpret_cast<std::byte*>(residual.data),
                          bytes_of(residual),
                          stages_.place.rank - 1);
  }
}

void StageLink::send_residual(Stream& stream, const View<float, 2>& residual) const {
  if (!is_last() && residual.shape[0] > 0) {
    stages_.comm->send(stream,
                       reinterpret_cast<const std::byte*>(residual.data),
                       bytes_of(residual),
                       stages_.place.rank + 1);
  }
}

void StageLink::advance_rows(Stream& stream,
                             RunnerOps& ops,
                             const RequestRows& rows,
                             const InputBatch& batch,
                             int64_t step) {
  if (batch.num_rows == 0) {
    return;
  }
  ops.advance_rows(stream, {batch.device}, batch.num_rows);
  if (num_expected_ - num_received_ == expected_.size()) {
    receive_next(stream, ops, rows);
  }
  expected_[num_expected_++ % expected_.size()] = {step, batch.num_rows};
}

void StageLink::send_results(Stream& stream,
                             RunnerOps& ops,
                             const PackResults& results,
                             int64_t num_rows) {
  if (num_rows == 0 || stages_.alone()) {
    return;
  }
  ops.pack_results(stream, results, num_rows);
  for (int32_t stage = 0; stage < stages_.place.rank; ++stage) {
    stages_.comm->send(stream,
                       reinterpret_cast<const std::byte*>(results_.words),
                       static_cast<size_t>(result_bytes(num_rows, max_drafts_)),
                       stage);
  }
}

}  // namespace warprow
