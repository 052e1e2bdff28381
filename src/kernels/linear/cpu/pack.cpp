// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cpu/pack.h"

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/linear/cpu/panel_kernels.h"
#include "kernels/linear/cpu/panel_layout.h"
#include "kernels/linear/number_places.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace warprow::cpu {
namespace {

static_assert(kRowsPerPanel == kPanelRows);

bool has_table(PackedKind kind) {
  return kind == PackedKind::kTable || kind == PackedKind::kTable16;
}

void check_shape(const PackedWeight& w) {
  WR_CHECK(w.n > 0 && w.k > 0, "n {} k {}", w.n, w.k);
  if (is_quantised(w.kind)) {
    WR_CHECK(w.group == group_of(w.kind) || (w.kind == PackedKind::kQ8 && w.group == kWideGroup),
             "groups of {}",
             w.group);
    WR_CHECK(w.scales != ScaleForm::kF32 || !w.has_bias);
    WR_CHECK_EQ(w.k % (w.scales == ScaleForm::kSplit ? kSplitInputs : w.group), 0);
    const bool mxfp4 = w.kind == PackedKind::kMxfp4;
    const bool table = has_table(w.kind);
    WR_CHECK(table == (w.numbers != nullptr) && (table || w.scale_unit == 1.0F));
    WR_CHECK(mxfp4 == (w.scales == ScaleForm::kE8M0) && !(mxfp4 && w.has_bias));
    WR_CHECK(mxfp4
                 ? w.zero_point == kMxfp4Zero
                 : w.zero_point == 0 || (w.kind != PackedKind::kQ8 && w.kind != PackedKind::kQ2 &&
                                         !table && w.zero_point == 1 << (stored_bits(w.kind) - 1)),
             "zero point {}",
             w.zero_point);
  }
}

void check_rows(const PackedWeight& w, int64_t first_row, int64_t num_rows) {
  check_shape(w);
  WR_CHECK_EQ(first_row % kPanelRows, 0);
  WR_CHECK(
      num_rows >= 0 && first_row + num_rows <= w.n, "rows {} + {} of {}", first_row, num_rows, w.n);
  WR_CHECK(num_rows % kPanelRows == 0 || first_row + num_rows == w.n,
           "{} rows from {}",
           num_rows,
           first_row);
}

// Converts f to the IEEE half that equals it. Checks that there is one; infinities and NaN are allowed.
uint16_t exact_half(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const auto exponent = static_cast<int32_t>((bits >> 23) & 0xffU);
  const uint32_t mantissa = bits & 0x7fffffU;
  uint32_t half = 0;
  if (exponent == 255) {
    half = 0x7c00U | (mantissa >> 13) | (mantissa != 0 ? 0x200U : 0U);
  } else if (exponent > 112) {
    half = (static_cast<uint32_t>(exponent - 112) << 10) | (mantissa >> 13);
  } else if (exponent >= 103) {
    half = (mantissa | 0x800000U) >> (126 - exponent);  // units of 2^-24: subnormal half
  }
  const auto result = static_cast<uint16_t>(sign | half);
  WR_CHECK(f16_to_f32(result) == f || std::isnan(f), "{} is not an IEEE half", f);
  return result;
}

uint32_t load_dword(const int8_t* q) {
  uint32_t v = 0;
  std::memcpy(&v, q, sizeof v);
  return v;
}

void store_dword(std::byte* dst, uint32_t v) { std::memcpy(dst, &v, sizeof v); }

// Packs one output's weights into lane `lane` of a kQ8 panel.
void pack_bytes(const PackedWeight& w, std::byte* panel, int64_t lane, const int8_t* q) {
  std::byte* dst = panel + lane * 4;
  for (int64_t i = 0; i < w.k / 4; ++i) {
    store_dword(dst + i * 64, load_dword(q + i * 4));
  }
}

// Four e2m1 numbers, given twice as large.
uint32_t e2m1_dword(const int8_t* q) {
  constexpr uint8_t kNone = 16;
  constexpr uint8_t kOfTwice[13] = {0, 1, 2, 3, 4, kNone, 5, kNone, 6, kNone, kNone, kNone, 7};
  uint32_t dword = 0;
  for (int i = 0; i < 4; ++i) {
    const int twice = std::abs(q[i]);
    const uint32_t number = twice > 12 ? kNone : kOfTwice[twice];
    WR_CHECK(number != kNone, "{} is not twice an e2m1 number", q[i]);
    dword |= (q[i] < 0 ? number | 8U : number) << (8 * i);
  }
  return dword;
}

// Four values in stored form. The low `bits` bits of q + zero point are those of q, with the top bit flipped
// if there is a zero point.
uint32_t stored_dword(const PackedWeight& w,
                      const NumberPlaces& places,
                      int64_t bits,
                      const int8_t* q) {
  if (has_table(w.kind)) {
    uint32_t dword = 0;
    for (int i = 0; i < 4; ++i) {
      dword |= uint32_t{places.of(q[i])} << (8 * i);
    }
    return dword;
  }
  if (w.kind == PackedKind::kMxfp4) {
    return e2m1_dword(q);
  }
  const uint32_t each = (uint32_t{1} << bits) - 1;
  const uint32_t flip = w.zero_point != 0 ? uint32_t{1} << (bits - 1) : 0;
  return (load_dword(q) & (0x01010101U * each)) ^ (0x01010101U * flip);
}

// Packs one output's weights of kQ2.
void pack_pairs(const PackedWeight& w, std::byte* panel, int64_t lane, const int8_t* q) {
  std::byte* dst = panel + lane * 4;
  for (int64_t first = 0; first < w.k; first += w.group, dst += 64) {
    uint32_t pairs = 0;
    for (int64_t i = 0; i < w.group; i += 4) {
      pairs |= (load_dword(q + first + i) & 0x03030303U) << (i / 2);
    }
    store_dword(dst, pairs);
  }
}

// Packs one output's weights of kQ4, kMxfp4, tables, kQ5 or kQ6: nibbles, then the plane of upper bits if there are any.
void pack_nibbles(const PackedWeight& w,
                  const NumberPlaces& places,
                  std::byte* panel,
                  int64_t lane,
                  const int8_t* q) {
  constexpr uint32_t kLow = 0x0f0f0f0fU;
  const int64_t bits = stored_bits(w.kind);
  const int64_t half = w.group / 2;
  const uint32_t upper = 0x01010101U * ((uint32_t{1} << (bits - 4)) - 1);
  std::byte* dst = panel + lane * 4;
  for (int64_t first = 0; first < w.k; first += w.group) {
    uint32_t plane = 0;
    for (int64_t i = 0; i < half; i += 4) {
      const uint32_t low = stored_dword(w, places, bits, q + first + i);
      const uint32_t high = stored_dword(w, places, bits, q + first + half + i);
      store_dword(dst, (low & kLow) | ((high & kLow) << 4));
      dst += 64;
      plane |= ((low >> 4) & upper) << (i / 4 * (bits - 4));
      plane |= ((high >> 4) & upper) << ((half + i) / 4 * (bits - 4));
    }
    if (bits > 4) {
      store_dword(dst, plane);
      dst += 64;
    }
  }
}

void pack_split_scales(const PackedWeight& w,
                       const PanelLayout& layout,
                       std::byte* scales,
                       int64_t lane,
                       const uint16_t* halves,
                       const int8_t* factors) {
  const int64_t groups = kSplitInputs / w.group;
  for (int64_t s = 0; s < w.k / kSplitInputs; ++s, scales += layout.split_bytes) {
    std::memcpy(scales + lane * 2, halves + s, sizeof(uint16_t));
    for (int64_t g = 0; g < groups; ++g) {
      std::memcpy(scales + 2 * layout.scale_group_bytes + g * layout.scale_group_bytes + lane,
                  factors + s * groups + g,
                  1);
    }
  }
}

// The exponent field of a power of two; 0 below 2^-126.
uint8_t exponent_field(float power) {
  const auto bits = std::bit_cast<uint32_t>(power);
  WR_CHECK(bits < 0x800000U || (bits & 0x807fffffU) == 0, "{} is not a power of two", power);
  return static_cast<uint8_t>(bits >> 23);
}

void pack_powers(const PackedWeight& w,
                 std::byte* scales,
                 int64_t group_bytes,
                 int64_t lane,
                 const float* values) {
  for (int64_t g = 0; g < w.k / w.group; ++g) {
    scales[g * group_bytes + lane] = std::byte{exponent_field(values[g])};
  }
}

void pack_scales(const PackedWeight& w,
                 std::byte* scales,
                 int64_t group_bytes,
                 int64_t lane,
                 const float* values) {
  const int64_t num_groups = w.k / w.group;
  for (int64_t g = 0; g < num_groups; ++g) {
    if (w.scales == ScaleForm::kF32) {
      std::memcpy(scales + g * group_bytes + lane * 4, values + g, sizeof(float));
      continue;
    }
    const uint16_t half = exact_half(values[g]);
    std::memcpy(scales + g * group_bytes + lane * 2, &half, sizeof half);
  }
}

// Packs scales and biases of row `row` of `rows` into a panel's lane.
void pack_lane_scales(const PackedWeight& w,
                      const PanelLayout& layout,
                      std::byte* scales,
                      int64_t lane,
                      int64_t row,
                      const GroupRows& rows) {
  const int64_t at = row * (w.k / w.group);
  const int64_t half_at = row * (w.k / kSplitInputs);
  const bool split = w.scales == ScaleForm::kSplit;
  const SplitRows& parts = rows.split;
  if (split) {
    pack_split_scales(w, layout, scales, lane, parts.scale_half + half_at, parts.scale_factor + at);
  } else if (w.scales == ScaleForm::kE8M0) {
    pack_powers(w, scales, layout.scale_group_bytes, lane, rows.scale + at);
  } else {
    pack_scales(w, scales, layout.scale_group_bytes, lane, rows.scale + at);
  }
  if (!w.has_bias) {
    return;
  }
  if (split) {  // after the 16 scales; lanes of halves are twice as wide as those of factors
    pack_split_scales(
        w, layout, scales, lane + kPanelRows, parts.bias_half + half_at, parts.bias_factor + at);
  } else {
    pack_scales(
        w, scales + layout.scale_group_bytes / 2, layout.scale_group_bytes, lane, rows.bias + at);
  }
}

// Packs bf16 values, two inputs to a dword.
void interleave_pairs(const uint16_t* values, int64_t k, int64_t num_rows, std::byte* panel) {
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      std::memcpy(panel + i / 2 * kPanelRows * 4 + r * 4 + i % 2 * 2, values + r * k + i, 2);
    }
    if (k % 2 != 0) {
      std::memset(panel + k / 2 * kPanelRows * 4 + r * 4 + 2, 0, 2);
    }
  }
}

template <typename T>
void interleave(const T* values, int64_t k, int64_t num_rows, std::byte* panel) {
  for (int64_t r = 0; r < num_rows; ++r) {
    std::byte* dst = panel + r * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < k; ++i) {
      std::memcpy(
          dst + i * kPanelRows * static_cast<int64_t>(sizeof(T)), values + r * k + i, sizeof(T));
    }
  }
}

}  // namespace

size_t packed_panel_bytes(const PackedWeight& shape) {
  check_shape(shape);
  return static_cast<size_t>(panel_layout(shape).panel_bytes);
}

size_t packed_bytes(const PackedWeight& shape) {
  check_shape(shape);
  const PanelLayout layout = panel_layout(shape);
  return static_cast<size_t>(layout.num_panels * layout.panel_bytes);
}

void pack_groups(const PackedWeight& shape,
                 std::byte* dst,
                 int64_t first_row,
                 int64_t num_rows,
                 const GroupRows& rows) {
  check_rows(shape, first_row, num_rows);
  WR_CHECK(is_quantised(shape.kind));
  const PanelLayout layout = panel_layout(shape);
  const NumberPlaces places(shape.numbers);
  for (int64_t first = 0; first < num_rows; first += kPanelRows, dst += layout.panel_bytes) {
    const int64_t num_lanes = std::min(kPanelRows, num_rows - first);
    if (num_lanes < kPanelRows) {
      std::memset(dst, 0, static_cast<size_t>(layout.panel_bytes));
    }
    std::byte* scales = dst + layout.scales_offset;
    for (int64_t lane = 0; lane < num_lanes; ++lane) {
      const int64_t row = first + lane;
      if (shape.kind == PackedKind::kQ8) {
        pack_bytes(shape, dst, lane, rows.q + row * shape.k);
      } else if (shape.kind == PackedKind::kQ2) {
        pack_pairs(shape, dst, lane, rows.q + row * shape.k);
      } else {
        pack_nibbles(shape, places, dst, lane, rows.q + row * shape.k);
      }
      pack_lane_scales(shape, layout, scales, lane, row, rows);
    }
  }
}

void pack_values(const PackedWeight& shape,
                 std::byte* dst,
                 int64_t first_row,
                 int64_t num_rows,
                 const void* values) {
  check_rows(shape, first_row, num_rows);
  WR_CHECK(!is_quantised(shape.kind));
  const PanelLayout layout = panel_layout(shape);
  for (int64_t first = 0; first < num_rows; first += kPanelRows, dst += layout.panel_bytes) {
    const int64_t num_lanes = std::min(kPanelRows, num_rows - first);
    if (num_lanes < kPanelRows) {
      std::memset(dst, 0, static_cast<size_t>(layout.panel_bytes));
    }
    if (shape.kind == PackedKind::kF32) {
      interleave(static_cast<const float*>(values) + first * shape.k, shape.k, num_lanes, dst);
    } else {
      const uint16_t* halves = static_cast<const uint16_t*>(values) + first * shape.k;
      shape.kind == PackedKind::kBF16 ? interleave_pairs(halves, shape.k, num_lanes, dst)
                                      : interleave(halves, shape.k, num_lanes, dst);
    }
  }
}

}  // namespace warprow::cpu
