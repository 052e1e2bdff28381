// SPDX-License-Identifier: Apache-2.0
#include "layers/group_tiles.h"

#include "base/check.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "weights/quant_groups.h"

#include <algorithm>
#include <span>

namespace warprow {
namespace {

PackedWeight form_of(PackedKind kind, int32_t zero_point, int32_t group, bool has_bias) {
  PackedWeight weight;
  weight.kind = kind;
  weight.scales = ScaleForm::kF32;
  weight.zero_point = zero_point;
  weight.group = group;
  weight.has_bias = has_bias;
  return weight;
}

// Tiles of any numbers of 6 or 8 bits, with a sign or without: these are -32 to 31, and -128 to 127.
PackedWeight wide(bool bytes, int32_t group, bool has_bias) {
  return bytes ? form_of(PackedKind::kQ8, 128, group, has_bias)
               : form_of(PackedKind::kQ6, 32, group, has_bias);
}

}  // namespace

PackedWeight group_tiles_form(TensorType type) {
  const GroupTraits& traits = group_traits(type);
  if (traits.bits <= 4 && type != TensorType::kMXFP4) {  // whose numbers are -12 to 12
    return form_of(PackedKind::kQ4, traits.zero_point > 0 ? 8 : 0, traits.group, traits.has_bias);
  }
  return wide(traits.bits == 8, traits.group, traits.has_bias);
}

PackedWeight common_tiles(const PackedWeight& a, const PackedWeight& b) {
  WR_CHECK(a.scales == ScaleForm::kF32 && b.scales == ScaleForm::kF32);
  const int32_t group = std::min(a.group, b.group);
  const bool has_bias = a.has_bias || b.has_bias;
  if (a.kind == PackedKind::kQ4 && b.kind == PackedKind::kQ4 && a.zero_point == b.zero_point) {
    return form_of(PackedKind::kQ4, a.zero_point, group, has_bias);
  }
  return wide(a.kind == PackedKind::kQ8 || b.kind == PackedKind::kQ8, group, has_bias);
}

std::vector<PackedWeight> all_group_tiles() {
  std::vector<PackedWeight> all;
  for (const int32_t group : {16, 32}) {
    for (const bool has_bias : {false, true}) {
      all.push_back(form_of(PackedKind::kQ4, 0, group, has_bias));
      all.push_back(form_of(PackedKind::kQ4, 8, group, has_bias));
      all.push_back(wide(false, group, has_bias));
      all.push_back(wide(true, group, has_bias));
    }
  }
  return all;
}

void GroupTiles::pack(TensorType type,
                      const std::byte* src,
                      int64_t count,
                      const PackedWeight& tiles,
                      std::byte* out) {
  const int64_t of_type = tiles.k / group_traits(type).group;
  const int64_t of_tiles = tiles.k / tiles.group;
  q_.resize(static_cast<size_t>(tiles.k));
  scale_.resize(static_cast<size_t>(of_type));
  bias_.resize(static_cast<size_t>(of_type));
  numbers_.resize(static_cast<size_t>(kQuantTileRows) * static_cast<size_t>(tiles.k));
  scales_.resize(static_cast<size_t>(kQuantTileRows * of_tiles));
  biases_.resize(scales_.size());
  const size_t row_bytes = tensor_row_bytes(type, tiles.k);
  const size_t unit_bytes = quant_row_bytes(tiles);
  for (int64_t first = 0; first < count; first += kQuantTileRows, out += unit_bytes) {
    const int64_t rows = std::min<int64_t>(kQuantTileRows, count - first);
    for (int64_t row = 0; row < rows; ++row, src += row_bytes) {
      decode(type, src, tiles, row);
    }
    pack_quant_tiles(tiles,
                     rows,
                     {numbers_.data(), scales_.data(), nullptr, biases_.data()},
                     std::span(out, unit_bytes));
  }
}

void GroupTiles::decode(TensorType type,
                        const std::byte* src,
                        const PackedWeight& tiles,
                        int64_t row) {
  decode_groups(type, src, tiles.k, q_.data(), scale_.data(), bias_.data());
  const auto zero = tiles.zero_point;
  std::transform(q_.begin(), q_.end(), numbers_.data() + row * tiles.k, [zero](int8_t q) {
    return static_cast<uint8_t>(q + zero);
  });
  const int64_t groups = tiles.k / tiles.group;
  const int64_t each = group_traits(type).group / tiles.group;  // of the tiles, of the type's
  for (int64_t g = 0; g < groups; ++g) {
    const auto from = static_cast<size_t>(g / each);
    scales_[static_cast<size_t>(row * groups + g)] = scale_[from];
    biases_[static_cast<size_t>(row * groups + g)] = bias_[from];
  }
}

}  // namespace warprow
