// SPDX-License-Identifier: Apache-2.0
#include "layers/tensor_spec.h"

#include "base/check.h"
#include "base/math.h"
#include "layers/weight_format.h"

#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

Result<IndexRange> shard_of(const std::string& tensor,
                            const char* what,
                            int64_t size,
                            const ShardRule& rule,
                            int64_t multiple) {
  WR_CHECK(rule.world > 0 && rule.rank >= 0 && rule.rank < rule.world,
           "rank {} of {}",
           rule.rank,
           rule.world);
  if (rule.world == 1) {
    return IndexRange{0, size};
  }
  if (size % (rule.world * multiple) != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("tensor {} cannot be split over {} ranks: {} {} are not {} parts in "
                            "multiples of {}",
                            tensor,
                            rule.world,
                            size,
                            what,
                            rule.world,
                            multiple));
  }
  const int64_t count = size / rule.world;
  return IndexRange{rule.rank * count, count};
}

// Checks that the slice may be a matrix of its own: its rows or columns do not cut through groups.
Result<void> check_slice(const std::string& tensor,
                         const char* what,
                         IndexRange slice,
                         int64_t whole,
                         int64_t multiple) {
  const int64_t end = slice.begin + slice.count;
  WR_CHECK(slice.begin >= 0 && end <= whole, "{} {} of {} {}", slice.count, what, whole, tensor);
  if (slice.begin % multiple != 0 || (end % multiple != 0 && end != whole)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("tensor {}: {} [{}, {}) of {} cut through its groups of {}",
                            tensor,
                            what,
                            slice.begin,
                            end,
                            whole,
                            multiple));
  }
  return {};
}

// Converts rows or columns of the matrix to those of the part.
IndexRange scaled(IndexRange range, int64_t each) {
  return {range.begin / each, ceil_div(range.count, each)};
}

}  // namespace

TensorSpec bias_spec(const TensorSpec& weight, const std::string& name) {
  TensorSpec bias;
  bias.name = name;
  bias.cols = weight.rows;
  bias.order = weight.order;
  bias.head_dim = weight.head_dim;
  bias.slice.tensor_rows = weight.slice.tensor_rows > 0 ? 1 : 0;
  bias.slice.tensor_cols = weight.slice.tensor_rows;
  bias.slice.first_col = weight.slice.first_row;
  if (weight.shard.axis == ShardRule::Axis::kRows) {
    bias.shard = weight.shard;
    bias.shard.axis = ShardRule::Axis::kCols;
    if (weight.order == RowOrder::kRopePairs) {
      bias.shard.unit = std::lcm(bias.shard.unit, int64_t{weight.head_dim});
    }
  }
  return bias;
}

Result<IndexRange> shard_rows(const TensorSpec& spec, const ShardAlignment& alignment) {
  if (spec.shard.axis != ShardRule::Axis::kRows) {
    return IndexRange{0, spec.rows};
  }
  int64_t multiple = std::lcm(alignment.rows, spec.shard.unit);
  if (spec.order == RowOrder::kRopePairs) {
    multiple = std::lcm(multiple, int64_t{spec.head_dim});
  }
  return shard_of(spec.name, "rows", spec.rows, spec.shard, multiple);
}

Result<IndexRange> shard_cols(const TensorSpec& spec, const ShardAlignment& alignment) {
  if (spec.shard.axis != ShardRule::Axis::kCols) {
    return IndexRange{0, spec.cols};
  }
  const int64_t multiple = std::lcm(alignment.cols, spec.shard.unit);
  return shard_of(spec.name, "columns", spec.cols, spec.shard, multiple);
}

Result<TensorRegion> rank_region(const TensorSpec& spec,
                                 const WeightFormat& format,
                                 const SourcePart& part,
                                 const TensorSource& tensor) {
  const TensorSlice& slice = spec.slice;
  const int64_t tensor_rows = spec.transposed ? spec.cols : spec.rows;  // of the slice
  const int64_t tensor_cols = spec.transposed ? spec.rows : spec.cols;
  const int64_t all_rows = slice.tensor_rows > 0 ? slice.tensor_rows : tensor_rows;
  const int64_t all_cols = slice.tensor_cols > 0 ? slice.tensor_cols : tensor_cols;
  const int64_t wanted_rows = ceil_div(all_rows, part.rows_each);
  const int64_t wanted_cols = ceil_div(all_cols, part.cols_each);
  if (tensor.rows != wanted_rows || tensor.cols != wanted_cols) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("tensor {} is [{}, {}], the model's config wants [{}, {}]",
                            tensor.name,
                            tensor.rows,
                            tensor.cols,
                            wanted_rows,
                            wanted_cols));
  }
  if (spec.transposed && (is_quantised(tensor.type) || !has_values(tensor.type))) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format(
            "tensor {}: {} cannot be transposed", tensor.name, tensor_type_name(tensor.type)));
  }
  const ShardAlignment& alignment = format.alignment;
  const Result<IndexRange> of_rows = shard_rows(spec, alignment);
  const Result<IndexRange> of_cols = shard_cols(spec, alignment);
  const Result<IndexRange>& rows = spec.transposed ? of_cols : of_rows;
  const Result<IndexRange>& cols = spec.transposed ? of_rows : of_cols;
  const Result<void> row_slice =
      check_slice(tensor.name, "rows", {slice.first_row, tensor_rows}, all_rows, alignment.rows);
  const Result<void> col_slice =
      check_slice(tensor.name, "columns", {slice.first_col, tensor_cols}, all_cols, alignment.cols);
  for (const Error* error : {rows ? nullptr : &rows.error(),
                             cols ? nullptr : &cols.error(),
                             row_slice ? nullptr : &row_slice.error(),
                             col_slice ? nullptr : &col_slice.error()}) {
    if (error != nullptr) {
      return tl::unexpected(*error);
    }
  }
  const IndexRange r = scaled({slice.first_row + rows->begin, rows->count}, part.rows_each);
  const IndexRange c = scaled({slice.first_col + cols->begin, cols->count}, part.cols_each);
  return TensorRegion(tensor, r.begin, r.count, c.begin, c.count);
}

}  // namespace warprow
