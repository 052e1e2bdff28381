// SPDX-License-Identifier: Apache-2.0
#include "layers/quant_piece.h"

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Kernels read e4m3's NaN as a number, and tiles do not hold every scale.
void check_for_tiles(const QuantMatrix& matrix, const QuantBuffers& rows) {
  const auto refuse = [&](const std::string& what) {
    throw StartupError(
        ErrorCode::kCorrupt,
        fmt::format(
            "a weight [{}, {}] in {} has {}", matrix.rows(), matrix.cols(), matrix.format(), what));
  };
  const auto is_nan = [](uint8_t number) { return (number & 0x7fU) == 0x7fU; };
  if (matrix.form().number == QuantNumber::kF8 &&
      std::any_of(rows.numbers.begin(), rows.numbers.end(), is_nan)) {
    refuse("a NaN");
  }
  for (const float scale : rows.scales) {
    if (!(std::fabs(scale) < kQuantScaleLimit)) {
      refuse(
          fmt::format("the scale {}; magnitudes below {} are possible", scale, kQuantScaleLimit));
    }
  }
}

}  // namespace

void make_quant_piece(const QuantMatrix& matrix,
                      const QuantPart& part,
                      Repack repack,
                      const PackedWeight& tiles,
                      int64_t first,
                      int64_t count,
                      std::byte* dst) {
  const QuantForm& form = matrix.form();
  QuantBuffers rows;
  std::vector<float> values;
  for (int64_t done = 0; done < count; done += kQuantTileRows) {
    QuantPart some = part;
    some.row += first + done;
    some.num_rows = std::min<int64_t>(kQuantTileRows, count - done);
    rows.resize(form, some);
    matrix.read(some, rows);
    if (repack == Repack::kQuantTiles) {
      check_for_tiles(matrix, rows);
      const size_t bytes = quant_row_bytes(tiles);
      pack_quant_tiles(tiles,
                       some.num_rows,
                       {rows.numbers.data(), rows.scales.data(), rows.zeros.data()},
                       {dst, bytes});
      dst += bytes;
      continue;
    }
    values.resize(rows.numbers.size());
    dequantise(form, some, rows, values.data());
    if (repack == Repack::kF32Rows) {
      std::copy(values.begin(), values.end(), reinterpret_cast<float*>(dst));
      dst += values.size() * sizeof(float);
    } else {
      std::transform(values.begin(), values.end(), reinterpret_cast<uint16_t*>(dst), f32_to_bf16);
      dst += values.size() * sizeof(uint16_t);
    }
  }
}

}  // namespace warprow
