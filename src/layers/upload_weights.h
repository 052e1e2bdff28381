// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "layers/row_order.h"
#include "layers/weight_format.h"
#include "weights/checkpoint.h"
#include "weights/tensor_region.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace warprow {

// Rows of one tensor on their way to a device that keeps weights as rows.
struct WeightUpload {
  TensorRegion region;
  std::byte* dst = nullptr;           // dev: the rows, one after the other
  Repack repack = Repack::kBf16Rows;  // or kKept, of any type
  RowOrder order = RowOrder::kPlain;
  int32_t head_dim = 0;  // kRopePairs
};

// Reads, decodes and copies all of them: several threads take pieces of rows, read them into pinned
// memory of their own (rows that are kept without a detour, others decoded and rounded to nearest
// even) and enqueue the copy on a stream of their own, while the other half of that memory is still
// on its way. Returns when everything is on the device. Throws StartupError for a file that cannot
// be read. `progress`, unless empty, hears the bytes of the checkpoint read so far, from any of the
// threads but from one at a time.
void upload_weights(Device& device,
                    const Checkpoint& checkpoint,
                    std::span<const WeightUpload> uploads,
                    const std::function<void(int64_t bytes)>& progress);

}  // namespace warprow
