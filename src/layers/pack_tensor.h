// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/packed_weight.h"
#include "layers/random_mxfp4.h"
#include "layers/row_order.h"
#include "weights/quant_matrix.h"
#include "weights/tensor_region.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

struct PackTensor {
  const Checkpoint* checkpoint = nullptr;  // its pages of the region are dropped afterwards
  TensorRegion region;                     // of a type that has values, or of MXFP4's numbers
  PackedWeight weight;                     // of the matrix's sizes, its kind the type's own
  std::byte* dst = nullptr;
  RowOrder order = RowOrder::kPlain;
  int32_t head_dim = 0;
  TensorRegion scales = {};  // MXFP4's, if the region has numbers alone
  bool transposed = false;   // the region has a row for each column of the matrix; float types
  const QuantMatrix* matrix = nullptr;  // instead of the region: a part of it
  QuantPart part = {};
};

// Enqueues reading, decoding and packing of one matrix, panel by panel on all cores. CPU only.
void pack_tensor(Stream& stream, const PackTensor& job);

// The same for a bf16 matrix of random numbers (kernels/random/fill_random.h). Its row i has the elements from
// first + i * stride on.
struct PackRandom {
  PackedWeight weight;
  std::byte* dst = nullptr;
  uint64_t seed = 0;
  float scale = 1.0F;
  int64_t first = 0;
  int64_t stride = 0;
};
void pack_random(Stream& stream, const PackRandom& job);

// The same for a matrix of MXFP4, whose rows lie in the tensor in the given order.
struct PackRandomMxfp4 {
  PackedWeight weight;
  std::byte* dst = nullptr;
  RandomMxfp4 random;
  RowOrder order = RowOrder::kPlain;
  int32_t head_dim = 0;
};
void pack_random(Stream& stream, const PackRandomMxfp4& job);

}  // namespace warprow
