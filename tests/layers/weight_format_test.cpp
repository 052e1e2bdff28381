// SPDX-License-Identifier: Apache-2.0
#include "layers/weight_format.h"

#include "base/check.h"
#include "kernels/linear/cpu/pack.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(WeightFormat, PanelsFollowTheType) {
  PackedWeight weight =
      sized_product(weight_format_of(TensorType::kQ4_0).on(DeviceKind::kCpu), 40, 64);
  EXPECT_EQ(weight.kind, PackedKind::kQ4);
  EXPECT_EQ(weight.zero_point, 8);
  EXPECT_FALSE(weight.has_bias);
  EXPECT_EQ(weight.scales, ScaleForm::kF16);
  EXPECT_EQ(weight.n, 40);
  EXPECT_EQ(weight.k, 64);
  weight = weight_format_of(TensorType::kQ6_K).cpu.product;
  EXPECT_EQ(weight.kind, PackedKind::kQ6);
  EXPECT_EQ(weight.group, 16);
  EXPECT_EQ(weight.scales, ScaleForm::kSplit);
  weight = weight_format_of(TensorType::kQ3_K).cpu.product;
  EXPECT_EQ(weight.kind, PackedKind::kTable16);
  EXPECT_EQ(weight.group, 16);
  EXPECT_EQ(weight.zero_point, 0);
  EXPECT_EQ(weight_format_of(TensorType::kQ2_K).cpu.product.kind, PackedKind::kQ2);
  weight = weight_format_of(TensorType::kIQ2_XXS).cpu.product;
  EXPECT_EQ(weight.kind, PackedKind::kTable);
  EXPECT_EQ(weight.scale_unit, 0.125F);
  const DeviceForm& xs = weight_format_of(TensorType::kIQ2_XS).cpu;
  EXPECT_TRUE(same_product(xs, weight_format_of(TensorType::kIQ2_S).cpu));
  EXPECT_FALSE(same_product(xs, weight_format_of(TensorType::kIQ1_M).cpu)) << "another table";
  EXPECT_EQ(weight_format_of(TensorType::kBF16).cpu.product.kind, PackedKind::kBF16);
  EXPECT_EQ(weight_format_of(TensorType::kF32).cpu.product.kind, PackedKind::kF32);
}

TEST(WeightFormat, OnCudaAllAreRowsOfBf16AndBf16IsKept) {
  for (int i = 0; i < kNumValueTypes; ++i) {
    const auto type = static_cast<TensorType>(i);
    const DeviceForm& form = weight_format_of(type).on(DeviceKind::kCuda);
    EXPECT_EQ(form.product.kind, PackedKind::kBF16) << tensor_type_name(type);
    EXPECT_EQ(form.repack, type == TensorType::kBF16 ? Repack::kKept : Repack::kBf16Rows);
    EXPECT_TRUE(stacks(form, weight_format_of(TensorType::kQ4_K).cuda));
  }
}

TEST(WeightFormat, OnCudaAllMayBeRowsOfFloat32AndFloat32IsKept) {
  for (int i = 0; i < kNumValueTypes; ++i) {
    const auto type = static_cast<TensorType>(i);
    const WeightFormat& format = weight_format_of(type);
    const DeviceForm& form = format.on(DeviceKind::kCuda, DType::kF32);
    EXPECT_EQ(form.product.kind, PackedKind::kF32) << tensor_type_name(type);
    EXPECT_EQ(form.repack, type == TensorType::kF32 ? Repack::kKept : Repack::kF32Rows);
    EXPECT_EQ(stored_bytes(form, format.sources.front(), 10, 256), 10U * 256 * 4);
    EXPECT_TRUE(stacks(form, weight_format_of(TensorType::kQ4_K).cuda_f32));
    EXPECT_FALSE(stacks(form, format.cuda));
    EXPECT_EQ(&format.on(DeviceKind::kCpu, DType::kF32), &format.cpu);
  }
}

TEST(WeightFormat, OnHopperQuantisedTypesOfLinearOperationsAreTiles) {
  DeviceFacts hopper;
  hopper.kind = DeviceKind::kCuda;
  hopper.compute_capability = 90;
  DeviceFacts ampere = hopper;
  ampere.compute_capability = 80;
  for (int i = 0; i < kNumValueTypes; ++i) {
    const auto type = static_cast<TensorType>(i);
    const WeightFormat& format = linear_format_of(type, hopper, 64, 512);
    EXPECT_EQ(format.cuda.repack == Repack::kQuantTiles, is_quantised(type));
    EXPECT_EQ(format.cuda_f32.product.kind, PackedKind::kF32);
    EXPECT_EQ(format.cpu.product.kind, weight_format_of(type).cpu.product.kind);
    EXPECT_EQ(format.alignment.cols, weight_format_of(type).alignment.cols);
    EXPECT_EQ(&linear_format_of(type, ampere, 64, 512), &weight_format_of(type));
    EXPECT_EQ(&linear_format_of(type, hopper, 72, 512), &weight_format_of(type)) << "half a tile";
  }
}

TEST(WeightFormat, TilesThatHoldAllOf) {
  DeviceFacts hopper;
  hopper.compute_capability = 90;
  const DeviceForm& q4 = linear_format_of(TensorType::kQ4_K, hopper, 64, 512).cuda;
  const DeviceForm& q6 = linear_format_of(TensorType::kQ6_K, hopper, 64, 512).cuda;
  const DeviceForm& q8 = linear_format_of(TensorType::kQ8_0, hopper, 64, 512).cuda;
  const DeviceForm* const all[] = {&q4, &q6, &q8};
  const DeviceForm* common = common_tiles_form(all);
  ASSERT_NE(common, nullptr);
  EXPECT_EQ(common->product.kind, PackedKind::kQ8);
  EXPECT_EQ(common->product.group, 16);
  EXPECT_TRUE(common->product.has_bias);
  const DeviceForm* const without[] = {&q4, &q6};
  EXPECT_EQ(common_tiles_form(without)->product.kind, PackedKind::kQ6);
  const DeviceForm* const same[] = {&q4, &q4};
  EXPECT_TRUE(same_product(*common_tiles_form(same), q4));
  const DeviceForm* const mixed[] = {&q4, &bf16_rows_form()};
  EXPECT_EQ(common_tiles_form(mixed), nullptr);
  const DeviceForm& mxfp4 = linear_format_of(TensorType::kMXFP4, hopper, 64, 512).cuda;
  const DeviceForm* const powers[] = {&mxfp4, &mxfp4};
  EXPECT_TRUE(same_product(*common_tiles_form(powers), mxfp4));
  const DeviceForm* const beside[] = {&q4, &mxfp4};
  EXPECT_EQ(common_tiles_form(beside), nullptr) << "2^127 is too large a scale for other tiles";
}

TEST(WeightFormat, IsCutBetweenBlocks) {
  EXPECT_EQ(weight_format_of(TensorType::kF16).alignment.cols, 1);
  EXPECT_EQ(weight_format_of(TensorType::kQ5_1).alignment.cols, 32);
  EXPECT_EQ(weight_format_of(TensorType::kQ6_K).alignment.cols, 256);
  EXPECT_EQ(weight_format_of(TensorType::kQ6_K).alignment.rows, 1);
  EXPECT_EQ(random_format().alignment.cols, 1);
}

TEST(WeightFormat, BytesOnTheDevice) {
  const WeightFormat& q8 = weight_format_of(TensorType::kQ8_0);
  const SourcePart& part = q8.sources.front();
  EXPECT_EQ(stored_bytes(q8.cuda, part, 10, 64), 1280U);
  EXPECT_EQ(stored_bytes(q8.cpu, part, 10, 64), cpu::packed_bytes(sized_product(q8.cpu, 10, 64)));
  EXPECT_EQ(stored_bytes({Repack::kKept, q8.cpu.product}, part, 10, 64), 680U);
}

TEST(WeightFormat, OnlyRowsOfOneProductStack) {
  const DeviceForm& q8 = weight_format_of(TensorType::kQ8_0).cpu;
  const DeviceForm& q4 = weight_format_of(TensorType::kQ4_0).cpu;
  EXPECT_FALSE(stacks(q8, q8)) << "panels";
  const DeviceForm kept_q8{Repack::kKept, q8.product};
  EXPECT_TRUE(stacks(kept_q8, kept_q8));
  EXPECT_FALSE(stacks(kept_q8, {Repack::kKept, q4.product}));
  EXPECT_FALSE(stacks(kept_q8, weight_format_of(TensorType::kQ8_0).cuda));
}

TEST(WeightFormat, NamesOfItsTensors) {
  EXPECT_EQ(part_name("l.0.q_proj.weight", {}), "l.0.q_proj.weight");
  EXPECT_EQ(part_name("l.0.q_proj.weight", {"qzeros", TensorType::kI32}), "l.0.q_proj.qzeros");
  EXPECT_EQ(part_name("weight", {"scale", TensorType::kF32}), "scale");
}

TEST(WeightFormat, IntegersHaveNone) {
  const ScopedCheckThrows throws;
  EXPECT_THROW(weight_format_of(TensorType::kI32), CheckFailure);
}

}  // namespace
}  // namespace warprow
