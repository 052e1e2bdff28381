// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/packed_weight.h"
#include "kernels/simd/dispatch.h"

#include <cstddef>
#include <cstdint>

// The inner kernels of the CPU linear layer, one set per instruction set. Files compiled for an instruction
// set include this header, so it contains plain structs only: an inline function could be linked into code
// that runs on a CPU without that instruction set.

namespace warprow::cpu {

// Inputs of a group of kQ8 that are more than 32.
inline constexpr int kWideGroup = 128;

// Activations of 32 (or 16, or kWideGroup) consecutive inputs as int8: x ~= scale * q, |q| <= 127.
struct ActGroup {
  float scale;
  float scaled_sum;  // scale * sum(q), for a weight group's bias
  int32_t sum;       // sum(q): removes the offset of weights with a zero point
};

// Consecutive panels of one matrix, and the destination of their outputs.
struct PanelJob {
  PackedKind kind;
  bool has_bias;  // as PackedWeight
  ScaleForm scales;
  int32_t zero_point;
  int32_t group;
  const int8_t* numbers;
  float scale_unit;
  int64_t k;
  const std::byte* panels;  // the first one
  int64_t panel_bytes;      // see PanelLayout
  int64_t scales_offset;
  int64_t scale_group_bytes;
  int64_t split_bytes;
  int64_t num_panels;
  int64_t num_outputs;    // at most 16 * num_panels; more than 16 * (num_panels - 1)
  const float* out_bias;  // [num_outputs] or null
  float* y;               // [num_rows, num_outputs] with y_stride
  int64_t y_stride;
  int64_t num_rows;
};

struct FloatRows {
  const float* x;  // [num_rows, k]
  int64_t stride;
};

struct Int8Rows {
  const int8_t* q;  // [num_rows, k], padded to whole groups of 32
  int64_t stride;
  const ActGroup* groups;  // [num_rows, k / job.group]: sums over the inputs of a weight group
  int64_t group_stride;
};

struct Bf16Rows {
  const uint16_t* x;  // [num_rows, k], padded with zeros to a multiple of 32
  int64_t stride;     // even
  // 0: a row's inputs lie together. Else so many rows, at most 16, are a tile of tile_rows * stride elements: 32 inputs of
  // each of them, then the next 32 inputs. Then x is the first row of a tile, and the last tile is whole.
  int64_t tile_rows = 0;
};

struct PanelKernels {
  const char* name;
  int64_t block_rows;  // of a call at most, where there are many: they stay in a core's cache
  // Quantises one row of k floats in groups of 32: q [round_up(k, 32)], by32 [ceil(k / 32)]. by16 [2 * ceil(k
  // / 32)], unless null, gets the same scales with the sums of 16 inputs.
  void (*quantise_row)(const float* x, int64_t k, int8_t* q, ActGroup* by32, ActGroup* by16);
  // The same in groups of kWideGroup, of which k is a multiple.
  void (*quantise_wide_row)(const float* x, int64_t k, int8_t* q, ActGroup* groups);
  void (*float_panels)(const PanelJob& job, const FloatRows& rows);
  void (*int8_panels)(const PanelJob& job, const Int8Rows& rows);
  // Rounds k floats to bf16, with zeros behind them up to a multiple of 32. Each 32 are `step` elements behind those before.
  void (*round_row)(const float* x, int64_t k, int64_t step, uint16_t* out);
  void (*bf16_panels)(const PanelJob& job, const Bf16Rows& rows);  // PackedKind::kBF16
  bool takes_tiles = false;  // bf16_panels does: Bf16Rows::tile_rows
};

WR_ISA_DECLARE(const PanelKernels&, panel_kernels, ());
const PanelKernels& panel_kernels_neon();  // ARMv8.2 with the int8 dot product
void int8_panels_avxvnni(const PanelJob& job, const Int8Rows& rows);
void bf16_panels_avx512bf16(const PanelJob& job, const Bf16Rows& rows);
void int8_panels_amx(const PanelJob& job, const Int8Rows& rows);
void round_row_amx(const float* x, int64_t k, int64_t step, uint16_t* out);
void bf16_panels_amx(const PanelJob& job, const Bf16Rows& rows);

// The set for this CPU, by cpu_isa().
const PanelKernels& panel_kernels();

}  // namespace warprow::cpu
