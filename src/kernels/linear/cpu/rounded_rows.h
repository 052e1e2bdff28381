// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/cpu/panel_kernels.h"
#include "kernels/linear/linear.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// The forms of x's rows that matrices multiply with, besides float32.
struct RowForms {
  bool int8 = false;
  bool by16 = false;  // int8, also with sums of 16 inputs
  bool wide = false;  // int8 in groups of kWideGroup
  bool bf16 = false;

  [[nodiscard]] bool any() const { return int8 || wide || bf16; }
  // Adds what products with the matrix need.
  void add(const PackedWeight& w, ActFormat act);
};

// The rows of a product's x in scratch, in the forms that its matrices multiply with.
//
// Owns: nothing.
// Thread: the pool's; threads write different rows.
class RoundedRows {
 public:
  // Scratch for this many rows in all forms, or in float32 (floats).
  static size_t bytes(int64_t num_rows, int64_t k);
  // Rows of a tile that suits so many rows, all tiles about equally high. 0: the kernels have no tiles.
  static int64_t tile_rows(const PanelKernels& kernels, int64_t num_rows);

  // tile_rows: of the form bf16, see Bf16Rows.
  RoundedRows(std::byte* scratch, int64_t num_rows, int64_t k, int64_t tile_rows = 0);

  // Rounds k floats to each of the forms of row `row`.
  void round(const PanelKernels& kernels, const RowForms& forms, const float* x, int64_t row) const;
  // Copies all forms of a row. Without tiles.
  void copy(const RowForms& forms, int64_t from, int64_t to) const;
  // Room for the rows in float32, [num_rows, k], in place of all other forms.
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(scratch_); }

  // Runs the panels of a job on w, for job.num_rows rows from first_row on. x: the same rows in float32, which
  // matrices read that need no other form. With tiles first_row is that of a tile.
  void multiply(const PanelKernels& kernels,
                const PanelJob& job,
                const PackedWeight& w,
                ActFormat act,
                int64_t first_row,
                const FloatRows& x) const;

 private:
  // In scratch: all q, then all groups of 32, then all groups of 16, then the same with groups of kWideGroup, then all bf16
  // rows, up to a whole tile, whose stride in elements is the q rows' stride.
  struct Layout {
    int64_t q_stride = 0;     // bytes; also elements
    int64_t groups = 0;       // of 32 inputs, in a row
    int64_t by32_offset = 0;  // bytes
    int64_t by16_offset = 0;
    int64_t wide_q_offset = 0;
    int64_t wide_offset = 0;
    int64_t wide_groups = 0;  // in a row
    int64_t bf16_offset = 0;
    int64_t total_bytes = 0;
  };
  static Layout layout_of(int64_t num_rows, int64_t k);

  [[nodiscard]] int8_t* q(int64_t row) const;
  [[nodiscard]] ActGroup* by32(int64_t row) const;
  [[nodiscard]] ActGroup* by16(int64_t row) const;
  [[nodiscard]] int8_t* wide_q(int64_t row) const;
  [[nodiscard]] ActGroup* wide(int64_t row) const;
  [[nodiscard]] uint16_t* bf16(int64_t row) const;  // a row's first inputs

  std::byte* scratch_;
  int64_t k_;
  int64_t tile_rows_;
  Layout layout_;
};

// Panels [first, last) of the matrix, without rows. `last` may be past its last panel.
PanelJob panel_job(const PackedWeight& w, int64_t first, int64_t last);

}  // namespace warprow::cpu
