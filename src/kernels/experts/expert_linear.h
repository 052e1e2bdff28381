// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/act_view.h"
#include "kernels/experts/expert_lists.h"
#include "kernels/linear/linear.h"
#include "kernels/op.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// A product of each row with the matrices of its experts.
//
// Formula: for place p of slot s, expert e: h = x[s / num_chosen] with x_by_row, else x[p];
//   v[j] = bias[e * n + j] + sum over i of w[e * n + j, i] * h[i]; kStore: y[p, j] = v[j];
//   kSwiGlu: g = v[j], u = v[n / 2 + j]; y[p, j] = silu(g) * u; with gate_limit > 0, g' = min(g, gate_limit) and u' = u
//   clamped to +-gate_limit: y[p, j] = g' * sigmoid(1.702 g') * (u' + 1) (gpt-oss).
// Shapes: w [num_experts * n, k], the experts' matrices one below the other; x [T, k] or [T * num_chosen, k];
//   y [T * num_chosen, n], with kSwiGlu [T * num_chosen, n / 2]. T may be 0. Rows of places that no real row has are not
//   written.
// Mapping: CPU: (expert, panels) over the compute pool, of experts that have rows. CUDA: a fixed grid over the items
//   (tile of the work list lists.tiles, tile of the expert's outputs).
// Bytes moved: the matrices of all experts that have rows, once.
// Numerics: f32 accumulators; k in ascending order, in one chain (CUDA: of tensor-core steps of 16; CPU: as linear).
//   A row's result depends on the row and its expert alone, bit for bit, whatever the others choose.
// Preconditions: CPU: n is a multiple of 16 (of 32 with kSwiGlu), x and y float32. CUDA: x and y bf16 and w bf16,
//   MXFP4 or tiles of linear operations (has_quant_tiles), or all float32; n a multiple of 8 (16 with kSwiGlu; of tiles 16
//   and 32), k of 8; without x_by_row another operation lies between route_experts and this one. kStore or kSwiGlu.
// Origin: own; work lists of experts: Gale et al., "MegaBlocks", 2022.
struct ExpertLinearArgs {
  ConstActView x;
  bool x_by_row = false;
  PackedWeight w;
  int32_t n = 0;                // outputs of an expert
  const float* bias = nullptr;  // dev f32 [num_experts * n], or null
  float gate_limit = 0.0F;      // 0: SwiGLU
  bool gelu = false;            // kSwiGlu: gelu, in its tanh form, in place of silu
  ActView y;
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  ActFormat act = ActFormat::kF32;  // CPU
  ExpertLists lists;
  ActView product = {};   // [T * num_chosen, n]  room; CPU with kSwiGlu
  ActView gathered = {};  // [T * num_chosen, k]  room; CUDA with x_by_row and many rows
  std::byte* scratch =
      nullptr;  // dev, 256-byte aligned, linear_scratch_bytes of T * num_chosen rows; CPU
};

WR_OP(expert_linear, ExpertLinearArgs);

}  // namespace warprow
