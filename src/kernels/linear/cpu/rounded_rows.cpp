// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cpu/rounded_rows.h"

#include "base/math.h"
#include "kernels/linear/cpu/panel_layout.h"

#include <algorithm>
#include <cstring>

namespace warprow::cpu {
namespace {

constexpr int64_t kMaxTileRows = 16;
constexpr int64_t kTileInputs = 32;

bool multiplies_int8(const PackedWeight& w, ActFormat act) {
  return act == ActFormat::kRounded && is_quantised(w.kind);
}
bool multiplies_wide(const PackedWeight& w, ActFormat act) {
  return multiplies_int8(w, act) && w.group == kWideGroup;
}
bool multiplies_bf16(const PackedWeight& w, ActFormat act) {
  return act == ActFormat::kRounded && w.kind == PackedKind::kBF16;
}

}  // namespace

void RowForms::add(const PackedWeight& w, ActFormat act) {
  int8 |= multiplies_int8(w, act) && !multiplies_wide(w, act);
  wide |= multiplies_wide(w, act);
  by16 |= multiplies_int8(w, act) && w.group == 16;
  bf16 |= multiplies_bf16(w, act);
}

RoundedRows::Layout RoundedRows::layout_of(int64_t num_rows, int64_t k) {
  Layout layout;
  layout.q_stride = round_up<int64_t>(k, 64);
  layout.groups = ceil_div<int64_t>(k, 32);
  layout.by32_offset = num_rows * layout.q_stride;
  const auto group_bytes = static_cast<int64_t>(sizeof(ActGroup));
  layout.by16_offset =
      layout.by32_offset + round_up<int64_t>(num_rows * layout.groups * group_bytes, 64);
  layout.wide_q_offset =
      layout.by16_offset + round_up<int64_t>(num_rows * layout.groups * 2 * group_bytes, 64);
  layout.wide_offset = layout.wide_q_offset + num_rows * layout.q_stride;
  layout.wide_groups = ceil_div<int64_t>(k, kWideGroup);
  layout.bf16_offset =
      layout.wide_offset + round_up<int64_t>(num_rows * layout.wide_groups * group_bytes, 64);
  layout.total_bytes = layout.bf16_offset + round_up(num_rows, kMaxTileRows) * layout.q_stride * 2;
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  layout.total_bytes = std::max(layout.total_bytes, num_rows * k * float_bytes);
  return layout;
}

size_t RoundedRows::bytes(int64_t num_rows, int64_t k) {
  return static_cast<size_t>(layout_of(num_rows, k).total_bytes);
}

int64_t RoundedRows::tile_rows(const PanelKernels& kernels, int64_t num_rows) {
  return kernels.takes_tiles ? ceil_div(num_rows, ceil_div(num_rows, kMaxTileRows)) : 0;
}

RoundedRows::RoundedRows(std::byte* scratch, int64_t num_rows, int64_t k, int64_t tile_rows)
    : scratch_(scratch), k_(k), tile_rows_(tile_rows), layout_(layout_of(num_rows, k)) {}

void RoundedRows::round(const PanelKernels& kernels,
                        const RowForms& forms,
                        const float* x,
                        int64_t row) const {
  if (forms.bf16) {
    kernels.round_row(x, k_, kTileInputs * std::max<int64_t>(tile_rows_, 1), bf16(row));
  }
  if (forms.int8) {
    kernels.quantise_row(x, k_, q(row), by32(row), forms.by16 ? by16(row) : nullptr);
  }
  if (forms.wide) {
    kernels.quantise_wide_row(x, k_, wide_q(row), wide(row));
  }
}

void RoundedRows::copy(const RowForms& forms, int64_t from, int64_t to) const {
  const auto elems = static_cast<size_t>(layout_.q_stride);
  const size_t group_bytes = static_cast<size_t>(layout_.groups) * sizeof(ActGroup);
  if (forms.bf16) {
    std::memcpy(bf16(to), bf16(from), elems * sizeof(uint16_t));
  }
  if (forms.int8) {
    std::memcpy(q(to), q(from), elems);
    std::memcpy(by32(to), by32(from), group_bytes);
  }
  if (forms.by16) {
    std::memcpy(by16(to), by16(from), 2 * group_bytes);
  }
  if (forms.wide) {
    std::memcpy(wide_q(to), wide_q(from), elems);
    std::memcpy(wide(to), wide(from), static_cast<size_t>(layout_.wide_groups) * sizeof(ActGroup));
  }
}

void RoundedRows::multiply(const PanelKernels& kernels,
                           const PanelJob& job,
                           const PackedWeight& w,
                           ActFormat act,
                           int64_t first_row,
                           const FloatRows& x) const {
  if (multiplies_bf16(w, act)) {
    kernels.bf16_panels(job, {bf16(first_row), layout_.q_stride, tile_rows_});
  } else if (!multiplies_int8(w, act)) {
    kernels.float_panels(job, x);
  } else if (multiplies_wide(w, act)) {
    kernels.int8_panels(
        job, {wide_q(first_row), layout_.q_stride, wide(first_row), layout_.wide_groups});
  } else if (w.group == 16) {
    kernels.int8_panels(job, {q(first_row), layout_.q_stride, by16(first_row), layout_.groups * 2});
  } else {
    kernels.int8_panels(job, {q(first_row), layout_.q_stride, by32(first_row), layout_.groups});
  }
}

int8_t* RoundedRows::q(int64_t row) const {
  return reinterpret_cast<int8_t*>(scratch_) + row * layout_.q_stride;
}
ActGroup* RoundedRows::by32(int64_t row) const {
  return reinterpret_cast<ActGroup*>(scratch_ + layout_.by32_offset) + row * layout_.groups;
}
ActGroup* RoundedRows::by16(int64_t row) const {
  return reinterpret_cast<ActGroup*>(scratch_ + layout_.by16_offset) + row * layout_.groups * 2;
}
int8_t* RoundedRows::wide_q(int64_t row) const {
  return reinterpret_cast<int8_t*>(scratch_ + layout_.wide_q_offset) + row * layout_.q_stride;
}
ActGroup* RoundedRows::wide(int64_t row) const {
  return reinterpret_cast<ActGroup*>(scratch_ + layout_.wide_offset) + row * layout_.wide_groups;
}
uint16_t* RoundedRows::bf16(int64_t row) const {
  auto* all = reinterpret_cast<uint16_t*>(scratch_ + layout_.bf16_offset);
  if (tile_rows_ == 0) {
    return all + row * layout_.q_stride;
  }
  const int64_t in_tile = row % tile_rows_;
  return all + (row - in_tile) * layout_.q_stride + in_tile * kTileInputs;
}

PanelJob panel_job(const PackedWeight& w, int64_t first, int64_t last) {
  const PanelLayout layout = panel_layout(w);
  last = std::min(last, layout.num_panels);
  PanelJob job{};
  job.kind = w.kind;
  job.has_bias = w.has_bias;
  job.scales = w.scales;
  job.zero_point = w.zero_point;
  job.group = w.group;
  job.numbers = w.numbers;
  job.scale_unit = w.scale_unit;
  job.k = w.k;
  job.panels = w.data + first * layout.panel_bytes;
  job.panel_bytes = layout.panel_bytes;
  job.scales_offset = layout.scales_offset;
  job.scale_group_bytes = layout.scale_group_bytes;
  job.split_bytes = layout.split_bytes;
  job.num_panels = last - first;
  job.num_outputs = std::min<int64_t>(w.n, last * kPanelRows) - first * kPanelRows;
  return job;
}

}  // namespace warprow::cpu
