// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/packed_weight.h"
#include "weights/tensor_type.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace warprow {

// Lays rows of a GGUF type out anew as quantised tiles (kernels/linear/quant/quant_tiles.h). A weight in a tile is the number, scale
// and bias of its group (weights/quant_groups.h), the latter two rounded to bf16 but for tables (docs/adr/0062). Groups of 32 may
// become two of 16, and numbers may take more bits than in the file.
//
// Owns: room for decoded rows, which lasts from call to call.
// Thread: one.
class GroupTiles {
 public:
  // rows: `count` of a tensor, of tiles.k elements each, at src one after the other. tiles: with room for `type`
  // (group_tiles_form, common_tiles); out: ceil(count / 16) times quant_row_bytes.
  void pack(TensorType type,
            const std::byte* src,
            int64_t count,
            const PackedWeight& tiles,
            std::byte* out);

 private:
  void decode(TensorType type, const std::byte* src, const PackedWeight& tiles, int64_t row);

  std::vector<int8_t> q_;
  std::vector<float> scale_;
  std::vector<float> bias_;
  // Of 16 rows, as QuantRows has them.
  std::vector<uint8_t> numbers_;
  std::vector<float> scales_;
  std::vector<float> biases_;
};

// Whether matrices of these forms can share tiles. MXFP4's scales, powers of two up to 2^127, fit no tiles but its own.
[[nodiscard]] bool can_share_tiles(const PackedWeight& a, const PackedWeight& b);

// The smallest tiles that hold a quantised type, without sizes and data: nibbles (of fewer bits too, and as places in a table
// of 16 numbers), six bits with zero point 32 (of five-bit types too) or bytes with zero point 128.
PackedWeight group_tiles_form(TensorType type);
// Tiles that hold what either of the two holds.
PackedWeight common_tiles(const PackedWeight& a, const PackedWeight& b);
// Every form that these two yield.
std::vector<PackedWeight> all_group_tiles();

}  // namespace warprow
