// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/pack.h"

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/linear/panel_layout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace warprow::cpu {
namespace {

static_assert(kRowsPerPanel == kPanelRows);

void check_shape(const PackedWeight& w) {
  WR_CHECK(w.n > 0 && w.k > 0, "n {} k {}", w.n, w.k);
  if (is_quantised(w.kind)) {
    WR_CHECK(w.group == 16 || w.group == 32, "group {}", w.group);
    WR_CHECK_EQ(w.k % w.group, 0);
    WR_CHECK(w.zero_point == 0 || (w.kind == PackedKind::kQ4 && w.zero_point == 8),
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

// The half that equals f; f must be one (checked), infinities and NaN included.
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
    half = (mantissa | 0x800000U) >> (126 - exponent);  // a subnormal half counts in units of 2^-24
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

// One output's weights into lane `lane` of a kQ8 panel.
void pack_bytes(const PackedWeight& w, std::byte* panel, int64_t lane, const int8_t* q) {
  std::byte* dst = panel + lane * 4;
  for (int64_t i = 0; i < w.k / 4; ++i) {
    store_dword(dst + i * 64, load_dword(q + i * 4));
  }
}

// The same for kQ4. q + 8 of -8..7 has the low nibble of q with its top bit flipped; q of 0..15 is
// its own nibble.
void pack_nibbles(const PackedWeight& w, std::byte* panel, int64_t lane, const int8_t* q) {
  constexpr uint32_t kLow = 0x0f0f0f0fU;
  const uint32_t flip = w.zero_point == 8 ? 0x08080808U : 0U;
  const int64_t half = w.group / 2;
  std::byte* dst = panel + lane * 4;
  for (int64_t first = 0; first < w.k; first += w.group) {
    for (int64_t i = 0; i < half; i += 4) {
      const uint32_t low = (load_dword(q + first + i) & kLow) ^ flip;
      const uint32_t high = (load_dword(q + first + half + i) & kLow) ^ flip;
      store_dword(dst, low | (high << 4));
      dst += 64;
    }
  }
}

void pack_scales(const PackedWeight& w,
                 std::byte* scales,
                 int64_t group_bytes,
                 int64_t lane,
                 const float* values) {
  const int64_t num_groups = w.k / w.group;
  for (int64_t g = 0; g < num_groups; ++g) {
    if (w.f16_scales) {
      const uint16_t half = exact_half(values[g]);
      std::memcpy(scales + g * group_bytes + lane * 2, &half, sizeof half);
    } else {
      std::memcpy(scales + g * group_bytes + lane * 4, values + g, sizeof(float));
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
  const int64_t num_groups = shape.k / shape.group;
  for (int64_t first = 0; first < num_rows; first += kPanelRows, dst += layout.panel_bytes) {
    const int64_t num_lanes = std::min(kPanelRows, num_rows - first);
    if (num_lanes < kPanelRows) {
      std::memset(dst, 0, static_cast<size_t>(layout.panel_bytes));
    }
    std::byte* scales = dst + layout.scales_offset;
    for (int64_t lane = 0; lane < num_lanes; ++lane) {
      const int64_t row = first + lane;
      if (shape.kind == PackedKind::kQ4) {
        pack_nibbles(shape, dst, lane, rows.q + row * shape.k);
      } else {
        pack_bytes(shape, dst, lane, rows.q + row * shape.k);
      }
      pack_scales(shape, scales, layout.scale_group_bytes, lane, rows.scale + row * num_groups);
      if (shape.has_bias) {
        pack_scales(shape,
                    scales + layout.scale_group_bytes / 2,
                    layout.scale_group_bytes,
                    lane,
                    rows.bias + row * num_groups);
      }
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
      interleave(static_cast<const uint16_t*>(values) + first * shape.k, shape.k, num_lanes, dst);
    }
  }
}

}  // namespace warprow::cpu
