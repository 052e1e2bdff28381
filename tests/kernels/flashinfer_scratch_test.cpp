// SPDX-License-Identifier: Apache-2.0
// The sizes and plans that FlashInfer's kernels get. A build without CUDA also computes them, to plan memory.
#include "kernels/attention/flashinfer/params.h"

#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

FlashInferLimits limits_of(int32_t num_q_heads, int32_t num_kv_heads, int32_t block_size) {
  FlashInferLimits limits;
  limits.kv.block_size = block_size;
  limits.kv.num_kv_heads = num_kv_heads;
  limits.kv.head_dim_k = limits.kv.head_dim_v = 128;
  limits.kv.token_stride = 128;
  limits.num_q_heads = num_q_heads;
  limits.max_rows = 256;
  limits.max_toks = 8192;
  limits.max_blocks = 4096 / block_size;
  limits.num_table_cells = 10 * limits.max_blocks;
  limits.num_sms = 132;
  return limits;
}

TEST(FlashInferScratch, PiecesLieSideBySide) {
  const FlashInferLimits limits = limits_of(32, 8, 16);
  std::vector<std::byte> memory(flashinfer_scratch_bytes(limits));
  cuda::FlashInferScratch scratch;
  EXPECT_EQ(cuda::flashinfer_scratch_layout(limits, memory.data(), &scratch), memory.size());
  const auto offset = [&](const void* piece) {
    return static_cast<const std::byte*>(piece) - memory.data();
  };
  const cuda::DecodeTables& tables = scratch.tables;
  const cuda::ExtendWork& work = scratch.work;
  EXPECT_EQ(tables.max_pages, 256);
  EXPECT_EQ(offset(tables.pages), 0);
  EXPECT_EQ(tables.max_rows, 256);
  EXPECT_EQ(offset(tables.lens), (256 + 10 * 256) * 4) << "one begin per row, one page per cell";
  EXPECT_EQ(offset(tables.arrivals) - offset(tables.lens), 256 * 4);
  EXPECT_EQ(offset(work.work_begin) - offset(tables.arrivals), 256 * 8 * 4);
  EXPECT_EQ(work.max_items, (8192 / 128 + 256) * 32);
  EXPECT_EQ(offset(scratch.partials) - offset(work.items), 7 * work.max_items * 4);
  EXPECT_LT(offset(scratch.partials), static_cast<std::ptrdiff_t>(memory.size()));
}

TEST(FlashInferScratch, BlocksOfManyTokensAreReadAsPagesOf64) {
  cuda::FlashInferScratch scratch;
  cuda::flashinfer_scratch_layout(limits_of(32, 8, 128), nullptr, &scratch);
  EXPECT_EQ(scratch.tables.page_size, 64);
  EXPECT_EQ(scratch.tables.page_stride, 64 * 128);
  EXPECT_EQ(scratch.tables.max_pages, 64);
  cuda::flashinfer_scratch_layout(limits_of(32, 8, 48), nullptr, &scratch);
  EXPECT_EQ(scratch.tables.page_size, 16);
}

TEST(FlashInferScratch, FewRowsAreCutIntoManyParts) {
  const FlashInferLimits limits = limits_of(32, 8, 16);
  EXPECT_EQ(cuda::xqa_splits(1, limits).most, 32);
  EXPECT_EQ(cuda::xqa_splits(8, limits).most, 16);
  EXPECT_EQ(cuda::xqa_splits(64, limits).most, 4);
  EXPECT_GE(cuda::xqa_splits(100'000, limits).most, 1);
  EXPECT_LT(cuda::xqa_splits(1, limits).min_tiles, cuda::xqa_splits(64, limits).min_tiles);
}

TEST(FlashInferScratch, UnmetNeedsAreNamed) {
  EXPECT_STREQ(flashinfer_unmet_need(limits_of(64, 8, 16)), "");
  EXPECT_NE(std::string(flashinfer_unmet_need(limits_of(72, 8, 16))).find("query heads"),
            std::string::npos);
  EXPECT_NE(std::string(flashinfer_unmet_need(limits_of(32, 8, 24))).find("blocks"),
            std::string::npos);
  FlashInferLimits wide = limits_of(32, 8, 16);
  wide.kv.head_dim_k = 96;
  EXPECT_NE(std::string(flashinfer_unmet_need(wide)).find("head sizes"), std::string::npos);
}

TEST(FlashInferFa2, AnyGroupAndBlockSizeAreMet) {
  FlashInferLimits limits = limits_of(72, 8, 24);
  limits.fa2 = true;
  EXPECT_STREQ(flashinfer_unmet_need(limits), "");
}

TEST(FlashInferFa2, TilesAreAsLargeAsTheRowsFill) {
  const FlashInferLimits limits = limits_of(32, 8, 16);
  EXPECT_EQ(cuda::fa2_decode_part(limits, 64).tile_q, 16);
  EXPECT_EQ(cuda::fa2_extend_part(limits, 64, 66, 64 + 8, false).tile_q, 16);
  EXPECT_EQ(cuda::fa2_extend_part(limits, 64, 66, 64 + 32, false).tile_q, 64);
  EXPECT_EQ(cuda::fa2_extend_part(limits, 64, 66, 64 + 2000, false).tile_q, 128);
  EXPECT_EQ(cuda::fa2_decode_part(limits_of(160, 8, 16), 64).tile_q, 64);
}

TEST(FlashInferFa2, OnlyPartsThatLeaveTheDeviceIdleAreSplit) {
  const FlashInferLimits limits = limits_of(32, 8, 16);
  EXPECT_EQ(cuda::fa2_extra_items(limits), 33);
  const cuda::Fa2Part few = cuda::fa2_decode_part(limits, 16);
  EXPECT_TRUE(few.split);
  EXPECT_EQ(few.num_items, 16 + 33);
  const cuda::Fa2Part many = cuda::fa2_decode_part(limits, 200);
  EXPECT_FALSE(many.split);
  EXPECT_EQ(many.num_items, 200);
  EXPECT_TRUE(cuda::fa2_extend_part(limits, 0, 1, 512, false).split);
  EXPECT_FALSE(cuda::fa2_extend_part(limits, 0, 1, 512, true).split);
  EXPECT_FALSE(cuda::fa2_extend_part(limits, 0, 1, 4096, false).split);
}

TEST(FlashInferFa2, ScratchHoldsEveryPart) {
  for (const int32_t heads : {8, 32, 72, 320}) {
    FlashInferLimits limits = limits_of(heads, 8, 16);
    limits.fa2 = true;
    std::vector<std::byte> memory(flashinfer_scratch_bytes(limits));
    cuda::FlashInferScratch scratch;
    cuda::flashinfer_scratch_layout(limits, memory.data(), &scratch);
    const auto room = [](const auto* from, const auto* to) {
      return (reinterpret_cast<const std::byte*>(to) - reinterpret_cast<const std::byte*>(from)) /
             static_cast<std::ptrdiff_t>(sizeof(*from));
    };
    const auto check = [&](const cuda::Fa2Part& part, const cuda::Fa2Work& work) {
      EXPECT_LE(part.num_items, room(work.row, work.tile)) << heads << " heads";
      if (part.split) {
        const int32_t partials =
            part.num_toks + cuda::fa2_extra_items(limits) * part.tile_q / (heads / 8);
        EXPECT_LE(partials * heads * 128 * 2,
                  room(scratch.fa2_partials.out,
                       reinterpret_cast<const std::byte*>(scratch.fa2_partials.lse)));
      }
    };
    for (int32_t rows = 1; rows <= limits.max_rows; ++rows) {
      check(cuda::fa2_decode_part(limits, rows), scratch.fa2_decode);
      for (int32_t toks = rows; toks <= limits.max_toks; toks += 37) {
        for (const bool invariant : {false, true}) {
          check(cuda::fa2_extend_part(limits, 0, rows, toks, invariant), scratch.fa2_extend);
        }
      }
    }
  }
}

}  // namespace
}  // namespace warprow
