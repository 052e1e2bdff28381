// SPDX-License-Identifier: Apache-2.0
#include "layers/group_tiles.h"

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/linear/number_places.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "weights/quant_groups.h"

#include <algorithm>
#include <span>

namespace warprow {
namespace {

PackedWeight form_of(PackedKind kind, int32_t zero_point, int32_t group, bool has_bias) {
  PackedWeight weight;
  weight.kind = kind;
  weight.scales = kind == PackedKind::kTable ? ScaleForm::kF32 : ScaleForm::kBF16;
  weight.zero_point = zero_point;
  weight.group = group;
  weight.has_bias = has_bias;
  return weight;
}

PackedWeight table_of(const int8_t* numbers, int32_t group) {
  PackedWeight weight = form_of(PackedKind::kTable, 0, group, false);
  weight.numbers = numbers;
  return weight;
}

// Half of what a kind's bits can be.
int32_t middle_of(PackedKind kind) {
  return kind == PackedKind::kQ8 ? 128 : kind == PackedKind::kQ6 ? 32 : 8;
}

// Tiles of any numbers of 6 or 8 bits, with a sign or without: these are -32 to 31, and -128 to 127. With biases there is no zero
// point: decode adds it to the biases of numbers with a sign.
PackedWeight wide(bool bytes, int32_t group, bool has_bias) {
  const PackedKind kind = bytes ? PackedKind::kQ8 : PackedKind::kQ6;
  return form_of(kind, has_bias ? 0 : middle_of(kind), group, has_bias);
}

// Whether a type's numbers have a sign.
bool is_signed(TensorType type) {
  const GroupTraits& traits = group_traits(type);
  return traits.zero_point > 0 || traits.bits == 8 || traits.numbers != nullptr;
}

float rounded(float v) { return bf16_to_f32(f32_to_bf16(v)); }

// Whether a form's numbers need a byte.
bool has_bytes(const PackedWeight& form) {
  const auto large = [](int8_t number) { return number < -32 || number > 31; };
  return form.kind == PackedKind::kQ8 ||
         (form.kind == PackedKind::kTable && std::any_of(form.numbers, form.numbers + 16, large));
}

}  // namespace

PackedWeight group_tiles_form(TensorType type) {
  const GroupTraits& traits = group_traits(type);
  if (traits.bits <= 4 && type != TensorType::kMXFP4) {  // whose numbers are not in a row
    return form_of(PackedKind::kQ4, traits.zero_point > 0 ? 8 : 0, traits.group, traits.has_bias);
  }
  if (traits.numbers != nullptr) {
    return table_of(traits.numbers, traits.group);
  }
  return wide(traits.bits == 8, traits.group, traits.has_bias);
}

bool can_share_tiles(const PackedWeight& a, const PackedWeight& b) {
  const int8_t* mxfp4 = group_traits(TensorType::kMXFP4).numbers;
  return (a.numbers == mxfp4) == (b.numbers == mxfp4);
}

PackedWeight common_tiles(const PackedWeight& a, const PackedWeight& b) {
  WR_CHECK(can_share_tiles(a, b));
  const int32_t group = std::min(a.group, b.group);
  const bool has_bias = a.has_bias || b.has_bias;
  if (a.kind == PackedKind::kQ4 && b.kind == PackedKind::kQ4 && a.has_bias == b.has_bias &&
      a.zero_point == b.zero_point) {
    return form_of(PackedKind::kQ4, a.zero_point, group, has_bias);
  }
  if (a.kind == PackedKind::kTable && b.kind == PackedKind::kTable && a.numbers == b.numbers) {
    return table_of(a.numbers, group);
  }
  return wide(has_bytes(a) || has_bytes(b), group, has_bias);
}

std::vector<PackedWeight> all_group_tiles() {
  std::vector<PackedWeight> all;
  for (const int32_t group : {16, 32}) {
    for (const bool has_bias : {false, true}) {
      all.push_back(form_of(PackedKind::kQ4, 0, group, has_bias));
      if (!has_bias) {
        all.push_back(form_of(PackedKind::kQ4, 8, group, has_bias));
      }
      all.push_back(wide(false, group, has_bias));
      all.push_back(wide(true, group, has_bias));
    }
    for (int i = 0; i < kNumValueTypes; ++i) {
      const auto type = static_cast<TensorType>(i);
      if (is_quantised(type) && group_tiles_form(type).kind == PackedKind::kTable) {
        all.push_back(table_of(group_traits(type).numbers, group));
      }
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
  uint8_t* numbers = numbers_.data() + row * tiles.k;
  const bool table = tiles.kind == PackedKind::kTable;
  // With biases, what makes numbers with a sign positive.
  const int32_t shift = tiles.has_bias && is_signed(type) ? middle_of(tiles.kind) : 0;
  if (table) {
    const NumberPlaces places(tiles.numbers);
    std::transform(q_.begin(), q_.end(), numbers, [&](int8_t q) { return places.of(q); });
  } else {
    const int32_t zero = tiles.zero_point + shift;
    std::transform(
        q_.begin(), q_.end(), numbers, [zero](int8_t q) { return static_cast<uint8_t>(q + zero); });
  }
  const int64_t groups = tiles.k / tiles.group;
  const int64_t each = group_traits(type).group / tiles.group;  // tile groups in a type's group
  for (int64_t g = 0; g < groups; ++g) {
    const auto from = static_cast<size_t>(g / each);
    const auto to = static_cast<size_t>(row * groups + g);
    scales_[to] = table ? scale_[from] : rounded(scale_[from]);
    biases_[to] = shift == 0 ? rounded(bias_[from])
                             : rounded(bias_[from] - static_cast<float>(shift) * scales_[to]);
  }
}

}  // namespace warprow
