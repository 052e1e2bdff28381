// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/packed_weight.h"
#include "layers/parameter_loader.h"
#include "weights/checkpoint.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// The packed form of a tensor, without data: its kind, groups and sizes.
PackedWeight packed_shape(const TensorSource& tensor);

// The checkpoint's row that holds row `row` of the plain order, when rope pairs lie side by side:
// halves (j, i) of a head become row 2 i + j.
constexpr int64_t rope_pair_row(int64_t row, int32_t head_dim) {
  const int64_t head = row / head_dim;
  const int64_t within = row % head_dim;
  const int64_t half = head_dim / 2;
  return head * head_dim + 2 * (within % half) + within / half;
}

struct PackTensor {
  const Checkpoint* checkpoint = nullptr;  // its pages of the tensor are dropped afterwards
  const TensorSource* tensor = nullptr;
  PackedWeight weight;
  std::byte* dst = nullptr;
  RowOrder order = RowOrder::kPlain;
  int32_t head_dim = 0;
};

// Enqueues reading, decoding and packing of one matrix, panel by panel on all cores.
void pack_tensor(Stream& stream, const PackTensor& job);

}  // namespace warprow
