// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "kernels/experts/mxfp4_tiles.h"
#include "layers/row_order.h"
#include "layers/weight_format.h"
#include "weights/checkpoint.h"
#include "weights/quant_matrix.h"
#include "weights/tensor_region.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace warprow {

// Rows of one tensor to be copied to a device that keeps weights as rows.
struct WeightUpload {
  TensorRegion region;                // of values, or of MXFP4's numbers
  std::byte* dst = nullptr;           // dev: the rows, one after the other
  Repack repack = Repack::kBf16Rows;  // or kF32Rows; kKept, of any type; kMxfp4Tiles; kQuantTiles
  RowOrder order = RowOrder::kPlain;
  int32_t head_dim = 0;           // kRopePairs
  TensorRegion scales = {};       // MXFP4's, if the region has numbers alone
  TensorRegion second_half = {};  // rows behind the region's, as many; kMxfp4Tiles
  bool transposed = false;        // the region has a row for each column of the matrix; float types
  // Instead of the region: a part of it.
  const QuantMatrix* matrix = nullptr;
  QuantPart part = {};
  PackedWeight tiles = {};  // kQuantTiles: their form and the matrix's size
};

// The order of an expert's rows in MXFP4's tiles.
constexpr Mxfp4Rows mxfp4_rows(RowOrder order, bool in_halves = false) {
  return in_halves                   ? Mxfp4Rows::kHalves
         : order == RowOrder::kPlain ? Mxfp4Rows::kPlain
                                     : Mxfp4Rows::kAlternating;
}

// Reads, decodes and copies all of them. Several threads take pieces of rows, read them into their own pinned
// memory (kept rows directly, others decoded and rounded to the type of the rows) and enqueue the copy on their own stream,
// while the copy from the other half of that memory is still running. Returns when everything is on the device.
// Throws StartupError for a file that cannot be read. `progress`, unless empty, gets the bytes of the checkpoint
// read so far, from any of the threads but one at a time.
void upload_weights(Device& device,
                    const Checkpoint& checkpoint,
                    std::span<const WeightUpload> uploads,
                    const std::function<void(int64_t bytes)>& progress);

}  // namespace warprow
