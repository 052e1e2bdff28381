// SPDX-License-Identifier: Apache-2.0
// The row operations that only encoders have, on CUDA, against the references of their cases.
#include "tests/cuda/cuda_test.h"
#include "tests/support/encoder_ops_case.h"
#include "tests/support/gated_case.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::GeluInPlaceCase;
using testing::LayerNormCase;
using testing::PlaceEmbeddingCase;
using testing::stored_as;

class EncoderOpsCuda : public testing::CudaTest {};

TEST_F(EncoderOpsCuda, LayerNormOfEveryTypeAndWidth) {
  for (const auto& [in, out] : {std::pair{DType::kF32, DType::kF32},
                                std::pair{DType::kF32, DType::kBF16},
                                std::pair{DType::kBF16, DType::kBF16}}) {
    for (const int64_t width : {2, 7, 8, 100, 384, 1024, 1031, 2048, 4096, 9728, 16400}) {
      for (const int64_t gap : {0, 8, 3}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(in) << " to " << dtype_name(out) << ", "
                                          << width << " wide, gap " << gap);
        const LayerNormCase c{.rows = 5,
                              .width = width,
                              .in = in,
                              .out = out,
                              .gap = gap,
                              .adds = width % 3 != 0,
                              .biased = gap != 8};
        ArenaMemory device = memory();
        const LayerNormArgs args = c.args(device);
        layer_norm(stream(), args);
        expect_elements(args.out, c.reference(), stored_as(out, {2e-5, 1e-5}));
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(EncoderOpsCuda, LayerNormInPlaceAndOfNoRows) {
  const LayerNormCase c{.rows = 4, .width = 1024, .in = DType::kBF16, .out = DType::kBF16};
  ArenaMemory device = memory();
  LayerNormArgs args = c.args(device);
  args.out =
      c.matrix().view(c.out, const_cast<std::byte*>(static_cast<const std::byte*>(args.x.data)));
  layer_norm(stream(), args);
  expect_elements(args.out, c.reference(), stored_as(c.out, {2e-5, 1e-5}));
  args.x.shape[0] = args.add.shape[0] = args.out.shape[0] = 0;
  layer_norm(stream(), args);
  stream().synchronize();
}

TEST_F(EncoderOpsCuda, Gelu) {
  for (const int64_t width : {1, 7, 100, 1032, 4096}) {
    for (const int64_t gap : {0, 3, 8}) {
      for (const DType type : {DType::kBF16, DType::kF32}) {
        for (const bool exact : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << width << " wide, gap "
                                            << gap << (exact ? ", exact" : ""));
          const GeluInPlaceCase c{
              .rows = 130, .width = width, .type = type, .gap = gap, .exact = exact};
          ArenaMemory device = memory();
          const GeluArgs args = c.args(device);
          gelu(stream(), args);
          expect_elements(args.x, c.reference(), stored_as(type, {3e-6, 1e-6}));
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_F(EncoderOpsCuda, ExactGeluGate) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const testing::ExactGeluCase c{{.rows = 130, .width = 1032, .type = type, .spread = 30.0F}};
    ArenaMemory device = memory();
    GeluAndMulArgs args = c.args(device);
    args.exact = true;
    gelu_and_mul(stream(), args);
    expect_elements(args.out, c.reference(), stored_as(type, {3e-6, 2e-6}));
  }
}

TEST_F(EncoderOpsCuda, PlaceEmbedding) {
  for (const int64_t width : {1, 100, 1024}) {
    for (const int tables : {1, 2, 3}) {
      const PlaceEmbeddingCase c{
          .width = width, .has_positions = tables % 2 == 1, .has_segments = tables >= 2};
      ArenaMemory device = memory();
      const PlaceEmbeddingArgs args = c.args(device);
      place_embedding(stream(), args);
      expect_elements(DType::kF32, args.x.data, c.reference(), {});
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_F(EncoderOpsCuda, ResizeHeads) {
  for (const auto& [from, to] : {std::pair{4, 7}, std::pair{7, 4}, std::pair{32, 64}}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      const testing::ResizeHeadsCase c{.rows = 70, .from = from, .to = to, .type = type};
      ArenaMemory device = memory();
      const ResizeHeadsArgs args = c.args(device);
      resize_heads(stream(), args);
      expect_elements(args.out, c.reference(), {});
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_F(EncoderOpsCuda, MeanRowsHaveTheBitsOfTheCpu) {
  for (const int64_t width : {1, 33, 1024}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      const testing::MeanRowsCase c{.ranges = 30, .width = width, .type = type, .gap = width % 3};
      ArenaMemory device = memory();
      const MeanRowsArgs args = c.args(device);
      mean_rows(stream(), args);
      expect_elements(DType::kF32, args.out.data, c.reference(), {});
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

}  // namespace
}  // namespace warprow
