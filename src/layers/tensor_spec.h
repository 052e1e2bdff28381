// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "layers/row_order.h"
#include "weights/tensor_region.h"

#include <cstdint>
#include <string>

namespace warprow {

struct SourcePart;
struct WeightFormat;

// Indices [begin, begin + count).
struct IndexRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// Which part of a matrix a rank holds: all of it, or the rank-th of `world` equal parts of its rows
// (output features) or columns (input features).
struct ShardRule {
  enum class Axis : uint8_t { kWhole, kRows, kCols };
  Axis axis = Axis::kWhole;
  int32_t rank = 0;
  int32_t world = 1;
  int64_t unit = 1;  // rows or columns that stay together, such as those of a head
};

// Multiples at which parts of a matrix must begin to be matrices of the same format. A whole matrix may have any
// size.
struct ShardAlignment {
  int64_t rows = 1;
  int64_t cols = 1;
};

// Where a matrix lies in a larger tensor (a fused one, a merged one of all experts).
struct TensorSlice {
  int64_t tensor_rows = 0;  // of the larger tensor; 0: the tensor is the matrix
  int64_t tensor_cols = 0;
  int64_t first_row = 0;
  int64_t first_col = 0;
};

// A matrix, or a vector, which is one row: where it lies in a checkpoint, its required shape, and which part of it
// a rank holds. Several named tensors that form one matrix (q, k and v; a layer's experts) are a list of specs,
// whose rows follow each other.
struct TensorSpec {
  std::string name;
  int64_t rows = 1;  // of the matrix, before it is split over ranks
  int64_t cols = 0;
  RowOrder order = RowOrder::kPlain;
  int32_t head_dim = 0;  // kRopePairs
  TensorSlice slice = {};
  ShardRule shard = {};
  // A tensor with the second half of the matrix's rows: an expert's up rows, behind the gate rows in `name`. Its shape and slice
  // are those of `name`. A rank holds a part of each half.
  std::string second_half = {};
  bool transposed =
      false;  // the tensor, or the slice of it, has the matrix's columns as rows; float types only
  // A matrix of a linear operation (kernels/linear), which takes quantised tiles on a GPU.
  bool of_linear = false;
  // Matrices of experts (kernels/experts), whose rows are whole tiles: they take quantised tiles on a GPU.
  bool of_experts = false;
  // The matrix of the logits: a linear operation's too, but on a GPU quantised in the checkpoint alone.
  bool of_head = false;
  // Embeddings that are the matrix of the logits too.
  bool of_tied_head = false;
  // Null: the format in which the tensor itself is stored. Otherwise `name` is a weight's name, from which the
  // format derives the names of its tensors.
  const WeightFormat* format = nullptr;
};

// The bias that goes with a weight: one element for each of its rows, split as they are.
TensorSpec bias_spec(const TensorSpec& weight, const std::string& name);

// A rank's rows and columns of the matrix. kUnsupported, with the tensor, its size, the ranks and the alignment, if
// it cannot be split into equal parts of whole units and of whole `alignment`s.
Result<IndexRange> shard_rows(const TensorSpec& spec, const ShardAlignment& alignment);
Result<IndexRange> shard_cols(const TensorSpec& spec, const ShardAlignment& alignment);

// The part of `tensor`, which is `part` of the format, that a rank reads. kCorrupt if the tensor has another shape
// than spec and part declare; kUnsupported if slice or shard cut through its groups.
Result<TensorRegion> rank_region(const TensorSpec& spec,
                                 const WeightFormat& format,
                                 const SourcePart& part,
                                 const TensorSource& tensor);

}  // namespace warprow
