// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstdint>

namespace warprow::cuda {

// A product with experts' matrices (expert_linear.h): x and y bf16, or all float32.
struct ExpertGemmArgs {
  const void* x;         // [.., k]
  int64_t x_stride;      // elements
  const int32_t* slots;  // place p has row slots[p] / num_chosen of x; null: row p
  int32_t num_chosen;
  const void* w;         // [num_experts * n, k], or the tiles of each expert (mxfp4_tiles.h)
  const float* bias;     // [num_experts * n] or null
  float gate_limit;      // as in expert_linear.h; kGeluGate (expert_gate.cuh): gelu
  void* y;               // [places, outputs]
  int64_t y_stride;      // elements
  const int32_t* tiles;  // ExpertLists::tiles
  int32_t max_tiles;     // at most so many
  int32_t max_places;    // of all rows, real or not
  int32_t num_experts;
  int32_t n;  // rows of w of an expert
  int32_t k;
  // w in tiles of linear operations (quant_tiles.h).
  int32_t tile_bytes = 0;
  int32_t tile_pieces = 0;  // quant_tile_pieces
  int32_t log2_group = 7;   // inputs of a scale
  QuantScales scales = QuantScales::kTwo;
  QuantCodes codes;
  bool has_zero_points = false;
};

// Hopper. kCols: expert_tile_places of the work list: 8 (only kBF16), 32, 48 (only kMxfp4), 64 (not kBF16), 96 (only kMxfp4) or
// 128. One file for each instance (cmake/stubs.cmake).
template <PackedKind kKind, ScaleForm kScales, int kCols>
void sm90_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue);

// The same for MXFP4 and a work list of up to eight places a tile.
void sm90_mxfp4_unit_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue);

// The same for matrices in tiles of linear operations and a work list of up to eight places a tile.
template <PackedKind kKind>
void sm90_unit_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue);

// The same for a work list of 256 places a tile, and x by place.
template <PackedKind kKind>
void sm90_wide_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue);

// Copies rows of x, bf16, so that they lie by place. first: ExpertLists::first.
void gather_places(
    Stream& stream, const ExpertGemmArgs& args, const int32_t* first, void* to, int64_t to_stride);

// Any GPU, bf16 or float32 (T): slow, sums by fused multiply-adds in the order of k.
template <typename T>
void plain_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue);

}  // namespace warprow::cuda
