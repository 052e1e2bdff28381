// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/device.h"
#include "kernels/linear/packed_weight.h"
#include "layers/tensor_spec.h"
#include "weights/quant_matrix.h"
#include "weights/tensor_type.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace warprow {

// How the rows of a matrix are stored in a device's memory.
enum class Repack : uint8_t {
  kPanels,      // panels of 16 rows in the tensor's own precision (kernels/linear/pack.h); CPU
  kBf16Rows,    // rows of bf16, rounded to nearest even
  kF32Rows,     // rows of float32, exact
  kKept,        // the bytes of the file, rows in plain order
  kMxfp4Tiles,  // the form of kernels/experts/mxfp4_tiles.h, a matrix for each spec; CUDA
  kQuantTiles,  // the forms of kernels/linear/quant/quant_tiles.h; CUDA
};

// One of the tensors that a matrix is made of.
struct SourcePart {
  // Replaces the last component of the weight's name, or follows it if it begins with an underscore; empty: the name
  // itself.
  std::string suffix;
  TensorType type = TensorType::kF32;
  int64_t rows_each = 1;  // rows and columns of the matrix per element
  int64_t cols_each = 1;
  bool folded = false;  // the tensor's last two dimensions together are a row
};

// The form of a format's matrices on one kind of device.
struct DeviceForm {
  Repack repack = Repack::kPanels;
  PackedWeight product = {};  // what kernels/linear computes with, without sizes and data
};

// A format of weight matrices: the tensors that form one, how it may be split, and its form on each kind of device.
// A new format is a new value of this type. It needs a new Repack only if no device keeps its bytes or uses another
// format's form.
struct WeightFormat {
  std::string name;  // for messages
  // The first has a row for each of the matrix. kKept stores others behind it; otherwise a second one has MXFP4's scales.
  // Empty: the matrix consists of random numbers, rounded to bf16.
  std::vector<SourcePart> sources;
  ShardAlignment alignment;
  DeviceForm cpu;
  DeviceForm cuda;
  DeviceForm cuda_f32;  // with --dtype float32
  // Instead of sources: a matrix that its tensors' names and shapes describe.
  const QuantMatrix* matrix = nullptr;

  // rows: the type of rows on CUDA, kBF16 or kF32.
  [[nodiscard]] const DeviceForm& on(DeviceKind device, DType rows = DType::kBF16) const {
    if (device != DeviceKind::kCuda) {
      return cpu;
    }
    return rows == DType::kF32 ? cuda_f32 : cuda;
  }
};

// The format of a quantised matrix on this device, of which the rank has a part [rows, cols]. spec: whether it is a linear
// operation's or experts', which take tiles. exact: on a CPU, values are not rounded. rounds_inputs: products of linear
// operations round their inputs as the matrix says, on Hopper with tiles, and on a CPU with exact values.
WeightFormat quant_format(const QuantMatrix& matrix,
                          const DeviceFacts& device,
                          const TensorSpec& spec,
                          bool exact,
                          bool rounds_inputs,
                          int64_t rows,
                          int64_t cols);
// The format of a linear operation's or an expert's matrix that is one tensor of this type, or of the rank's part
// [rows, cols] of it: on Hopper quantised types are tiles.
const WeightFormat& linear_format_of(TensorType type,
                                     const DeviceFacts& device,
                                     int64_t rows,
                                     int64_t cols);
// The form of tiles that hold what matrices of all these forms hold. Forms that are tiles must be those of GGUF types. Null unless all
// are tiles, and if MXFP4 is beside another type.
const DeviceForm* common_tiles_form(std::span<const DeviceForm* const> forms);
// Rows of bf16, which every matrix can become on CUDA.
const DeviceForm& bf16_rows_form();
// The format of a matrix that is one tensor of a type that has values (checked).
const WeightFormat& weight_format_of(TensorType type);
// Experts' matrices in GGUF's MXFP4, on Hopper: in 4 bits. Gate and up rows are one matrix (TensorSpec::second_half).
const WeightFormat& mxfp4_blocks_format();
// MXFP4 in safetensors: NAME_blocks has the numbers, NAME_scales their scales. In 4 bits where kernels compute with it.
const WeightFormat& mxfp4_pair_format(const DeviceFacts& device);
// The format for LoadFormat::kDummy.
const WeightFormat& random_format();

// The name of a part of the weight `name`.
std::string part_name(const std::string& name, const SourcePart& part);

// The product's matrix [rows, cols], without data.
PackedWeight sized_product(const DeviceForm& form, int64_t rows, int64_t cols);
// Whether matrices of the two forms, stacked by rows, are one matrix of their product. Panels: if the upper one's rows
// are whole panels. Else scales of inputs may differ: the largest is the stack's.
bool same_product(const DeviceForm& upper, const DeviceForm& lower);
// The same for the parts of a linear layer, whose panels stay apart.
bool stacks(const DeviceForm& upper, const DeviceForm& lower);
// Bytes in the device's memory of this many rows and columns of the matrix; with kKept, of one of its sources.
size_t stored_bytes(const DeviceForm& form, const SourcePart& part, int64_t rows, int64_t cols);

// Every source of a kept matrix begins at a multiple of this.
inline constexpr size_t kSourceAlignment = 256;

}  // namespace warprow
