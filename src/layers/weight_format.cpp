// SPDX-License-Identifier: Apache-2.0
#include "layers/weight_format.h"

#include "base/check.h"
#include "kernels/experts/mxfp4_tiles.h"
#include "kernels/linear/cpu/pack.h"
#include "kernels/linear/cpu/panel_kernels.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "layers/group_tiles.h"
#include "weights/quant_groups.h"

#include <algorithm>
#include <array>

namespace warprow {
namespace {

PackedWeight plain(PackedKind kind) {
  PackedWeight weight;
  weight.kind = kind;
  return weight;
}

PackedWeight mxfp4_panels() {
  PackedWeight weight = plain(PackedKind::kMxfp4);
  weight.scales = ScaleForm::kE8M0;
  weight.zero_point = kMxfp4Zero;
  return weight;
}

WeightFormat mxfp4_pair(const DeviceForm& cuda) {
  return {"MXFP4",
          {{"_blocks", TensorType::kU8, 1, 2, true}, {"_scales", TensorType::kU8, 1, 32}},
          {1, 32},
          {Repack::kPanels, mxfp4_panels()},
          cuda,
          {Repack::kF32Rows, plain(PackedKind::kF32)}};
}

// The product for panels of this type.
PackedWeight panel_product(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return plain(PackedKind::kF32);
    case TensorType::kF16:
      return plain(PackedKind::kF16);
    case TensorType::kBF16:
      return plain(PackedKind::kBF16);
    default:
      break;
  }
  if (type == TensorType::kMXFP4) {
    return mxfp4_panels();
  }
  const GroupTraits& traits = group_traits(type);
  PackedWeight weight;
  if (traits.numbers != nullptr) {
    weight.kind = traits.group == 16 ? PackedKind::kTable16 : PackedKind::kTable;
    weight.numbers = traits.numbers;
    weight.scale_unit = traits.unit;
  } else {
    weight.kind = traits.bits == 2   ? PackedKind::kQ2
                  : traits.bits == 4 ? PackedKind::kQ4
                  : traits.bits == 5 ? PackedKind::kQ5
                  : traits.bits == 6 ? PackedKind::kQ6
                                     : PackedKind::kQ8;
    weight.zero_point = traits.zero_point;
  }
  weight.has_bias = traits.has_bias;
  weight.scales = traits.f16_exact ? ScaleForm::kF16 : ScaleForm::kSplit;
  weight.group = traits.group;
  return weight;
}

WeightFormat stored_as(TensorType type) {
  WeightFormat format;
  format.name = tensor_type_name(type);
  format.sources = {{"", type}};
  format.alignment.cols = tensor_type_traits(type).block_elems;
  format.cpu = {Repack::kPanels, panel_product(type)};
  format.cuda = {type == TensorType::kBF16 ? Repack::kKept : Repack::kBf16Rows,
                 plain(PackedKind::kBF16)};
  format.cuda_f32 = {type == TensorType::kF32 ? Repack::kKept : Repack::kF32Rows,
                     plain(PackedKind::kF32)};
  return format;
}

std::array<WeightFormat, kNumValueTypes> stored_formats() {
  std::array<WeightFormat, kNumValueTypes> formats;
  for (size_t i = 0; i < formats.size(); ++i) {
    formats[i] = stored_as(static_cast<TensorType>(i));
  }
  return formats;
}

}  // namespace

const WeightFormat& weight_format_of(TensorType type) {
  static const std::array<WeightFormat, kNumValueTypes> kFormats = stored_formats();
  WR_CHECK(has_values(type), "{} has no values", tensor_type_name(type));
  return kFormats[static_cast<size_t>(type)];
}

const WeightFormat& linear_format_of(TensorType type,
                                     const DeviceFacts& device,
                                     int64_t rows,
                                     int64_t cols) {
  static const std::array<WeightFormat, kNumValueTypes> kFormats = [] {
    std::array<WeightFormat, kNumValueTypes> formats = stored_formats();
    for (size_t i = 0; i < formats.size(); ++i) {
      if (const auto of = static_cast<TensorType>(i); is_quantised(of)) {
        formats[i].cuda = {Repack::kQuantTiles, group_tiles_form(of)};
      }
    }
    return formats;
  }();
  const bool tiles = device.compute_capability == 90 && rows % kQuantTileRows == 0 && cols % 8 == 0;
  WR_CHECK(has_values(type), "{} has no values", tensor_type_name(type));
  return tiles ? kFormats[static_cast<size_t>(type)] : weight_format_of(type);
}

const DeviceForm* common_tiles_form(std::span<const DeviceForm* const> forms) {
  const auto of_groups = [&forms](const DeviceForm* form) {
    return form->repack == Repack::kQuantTiles &&
           can_share_tiles(form->product, forms.front()->product);
  };
  if (!std::all_of(forms.begin(), forms.end(), of_groups)) {
    return nullptr;
  }
  static const std::vector<DeviceForm> kForms = [] {
    std::vector<DeviceForm> all;
    for (const PackedWeight& tiles : all_group_tiles()) {
      all.push_back({Repack::kQuantTiles, tiles});
    }
    return all;
  }();
  DeviceForm common = *forms.front();
  for (const DeviceForm* form : forms) {
    common.product = common_tiles(common.product, form->product);
  }
  const auto found = std::find_if(kForms.begin(), kForms.end(), [&](const DeviceForm& form) {
    return same_product(form, common);
  });
  WR_CHECK(found != kForms.end(), "tiles of groups of {}", common.product.group);
  return &*found;
}

const DeviceForm& bf16_rows_form() {
  static const DeviceForm kRows{Repack::kBf16Rows, plain(PackedKind::kBF16)};
  return kRows;
}

const WeightFormat& random_format() {
  static const WeightFormat kRandom{"random",
                                    {},
                                    {},
                                    {Repack::kPanels, plain(PackedKind::kBF16)},
                                    bf16_rows_form(),
                                    {Repack::kF32Rows, plain(PackedKind::kF32)}};
  return kRandom;
}

const WeightFormat& mxfp4_blocks_format() {
  static const WeightFormat kTiles = [] {
    WeightFormat format = stored_as(TensorType::kMXFP4);
    format.cuda = {Repack::kMxfp4Tiles, plain(PackedKind::kMxfp4)};
    return format;
  }();
  return kTiles;
}

const WeightFormat& mxfp4_pair_format(const DeviceFacts& device) {
  static const WeightFormat kTiles = mxfp4_pair({Repack::kMxfp4Tiles, plain(PackedKind::kMxfp4)});
  static const WeightFormat kRows = mxfp4_pair({Repack::kBf16Rows, plain(PackedKind::kBF16)});
  return device.compute_capability == 90 ? kTiles : kRows;
}

namespace {

// Integers whose groups fit the CPU's kernels stay integers.
PackedWeight quant_panels(const QuantForm& form, int64_t cols, bool exact) {
  const bool fits = form.group % 32 == 0 && cols % 32 == 0;
  if (form.number == QuantNumber::kF8 || !fits ||
      (form.number == QuantNumber::kQ8 && form.has_zeros)) {
    return plain(exact ? PackedKind::kF32 : PackedKind::kBF16);
  }
  PackedWeight weight = plain(PackedKind::kQ8);
  weight.scales = form.half_scales ? ScaleForm::kF16 : ScaleForm::kF32;
  if (form.number == QuantNumber::kQ4 && !form.has_zeros && form.zero_point == 8) {
    weight.kind = PackedKind::kQ4;
    weight.zero_point = 8;
  }
  if (form.wide_inputs && form.number == QuantNumber::kQ8 && form.group == cpu::kWideGroup &&
      cols % cpu::kWideGroup == 0) {
    weight.group = cpu::kWideGroup;
  }
  return weight;
}

PackedWeight quant_tiles(const QuantForm& form, bool rounds_inputs) {
  if (rounds_inputs) {
    PackedWeight weight = plain(PackedKind::kF8F8);
    weight.group = form.group;
    weight.inputs = form.inputs;
    weight.input_scale = form.input_scale;
    return weight;
  }
  PackedWeight weight = plain(form.number == QuantNumber::kF8   ? PackedKind::kF8
                              : form.number == QuantNumber::kQ4 ? PackedKind::kQ4
                                                                : PackedKind::kQ8);
  weight.group = form.group;
  weight.zero_point = form.zero_point;
  weight.has_zero_points = form.has_zeros;
  if (form.bf16_scales) {
    weight.scales = ScaleForm::kBF16;
  }
  return weight;
}

}  // namespace

WeightFormat quant_format(const QuantMatrix& matrix,
                          const DeviceFacts& device,
                          const TensorSpec& spec,
                          bool exact,
                          bool rounds_inputs,
                          int64_t rows,
                          int64_t cols) {
  const QuantForm& form = matrix.form();
  rounds_inputs = rounds_inputs && spec.of_linear && form.inputs != F8Inputs::kNone;
  WeightFormat format;
  format.name = matrix.format();
  format.matrix = &matrix;
  format.alignment = {1, form.col_unit};
  format.cpu = {Repack::kPanels, quant_panels(form, cols, exact)};
  if (rounds_inputs && exact) {
    format.cpu.product.inputs = form.inputs;
    format.cpu.product.input_scale = form.input_scale;
  }
  const bool tiles = (spec.of_linear || spec.of_experts) && device.compute_capability == 90 &&
                     form.group >= 32 && rows % kQuantTileRows == 0 && cols % 8 == 0;
  format.cuda =
      tiles ? DeviceForm{Repack::kQuantTiles, quant_tiles(form, rounds_inputs)} : bf16_rows_form();
  format.cuda_f32 = {Repack::kF32Rows, plain(PackedKind::kF32)};
  return format;
}

std::string part_name(const std::string& name, const SourcePart& part) {
  if (part.suffix.empty()) {
    return name;
  }
  return part.suffix.starts_with('_') ? name + part.suffix
                                      : name.substr(0, name.rfind('.') + 1) + part.suffix;
}

PackedWeight sized_product(const DeviceForm& form, int64_t rows, int64_t cols) {
  PackedWeight weight = form.product;
  weight.n = static_cast<int32_t>(rows);
  weight.k = static_cast<int32_t>(cols);
  return weight;
}

bool same_product(const DeviceForm& upper, const DeviceForm& lower) {
  const PackedWeight& a = upper.product;
  const PackedWeight& b = lower.product;
  const bool panels = upper.repack == Repack::kPanels;
  return panels == (lower.repack == Repack::kPanels) && a.kind == b.kind &&
         a.has_bias == b.has_bias && a.scales == b.scales && a.zero_point == b.zero_point &&
         a.group == b.group && a.numbers == b.numbers && a.scale_unit == b.scale_unit &&
         a.has_zero_points == b.has_zero_points && a.inputs == b.inputs &&
         (!panels || a.input_scale == b.input_scale);
}

bool stacks(const DeviceForm& upper, const DeviceForm& lower) {
  return upper.repack != Repack::kPanels && same_product(upper, lower);
}

size_t stored_bytes(const DeviceForm& form, const SourcePart& part, int64_t rows, int64_t cols) {
  switch (form.repack) {
    case Repack::kPanels:
      return cpu::packed_bytes(sized_product(form, rows, cols));
    case Repack::kBf16Rows:
      return static_cast<size_t>(rows * cols) * sizeof(uint16_t);
    case Repack::kF32Rows:
      return static_cast<size_t>(rows * cols) * sizeof(float);
    case Repack::kMxfp4Tiles:
      return mxfp4_tiles_bytes(rows, cols);
    case Repack::kQuantTiles:
      return quant_tiles_bytes(sized_product(form, rows, cols));
    case Repack::kKept:
      return static_cast<size_t>(rows) * tensor_row_bytes(part.type, cols);
  }
  return 0;
}

}  // namespace warprow
