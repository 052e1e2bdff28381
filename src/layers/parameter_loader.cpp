// SPDX-License-Identifier: Apache-2.0
#include "layers/parameter_loader.h"

#include "base/error.h"
#include "kernels/linear/pack.h"
#include "layers/pack_tensor.h"
#include "weights/dequantize.h"

#include <utility>

#include <fmt/format.h>

namespace warprow {

ParameterLoader::ParameterLoader(const Checkpoint& checkpoint,
                                 Stream& stream,
                                 Arena& arena,
                                 Progress progress)
    : checkpoint_(checkpoint), stream_(stream), arena_(arena), progress_(std::move(progress)) {}

const TensorSource& ParameterLoader::source(const TensorWish& wish) const {
  const TensorSource* tensor = value_or_throw(checkpoint_.require(wish.name));
  if (tensor->rows != wish.rows || tensor->cols != wish.cols) {
    throw StartupError(ErrorCode::kCorrupt,
                       fmt::format("tensor {} is [{}, {}], the model's config wants [{}, {}]",
                                   wish.name,
                                   tensor->rows,
                                   tensor->cols,
                                   wish.rows,
                                   wish.cols));
  }
  return *tensor;
}

void ParameterLoader::report(const TensorSource& tensor) {
  bytes_read_ += static_cast<int64_t>(tensor.bytes);
  if (progress_) {
    progress_(bytes_read_);
  }
}

PackedWeight ParameterLoader::matrix(const TensorWish& wish) {
  const TensorSource& tensor = source(wish);
  PackedWeight weight = packed_shape(tensor);
  std::byte* data = arena_.alloc_bytes(cpu::packed_bytes(weight));
  weight.data = data;
  pack_tensor(stream_, {&checkpoint_, &tensor, weight, data, wish.order, wish.head_dim});
  report(tensor);
  return weight;
}

std::vector<float> ParameterLoader::read_vector(const TensorWish& wish) const {
  const TensorSource& tensor = source(wish);
  std::vector<float> values(static_cast<size_t>(wish.cols));
  dequantize_row(tensor.format, tensor.data, values.data(), wish.cols);
  if (wish.order == RowOrder::kRopePairs) {
    std::vector<float> ordered(values.size());
    for (size_t row = 0; row < ordered.size(); ++row) {
      ordered[row] =
          values[static_cast<size_t>(rope_pair_row(static_cast<int64_t>(row), wish.head_dim))];
    }
    return ordered;
  }
  return values;
}

View<const float, 1> ParameterLoader::vector(const TensorWish& wish) {
  View<const float, 1> view = constants(read_vector(wish));
  report(source(wish));
  return view;
}

View<const float, 1> ParameterLoader::constants(std::vector<float> values) {
  constants_.push_back(std::move(values));
  const std::vector<float>& kept = constants_.back();
  auto* data = arena_.alloc<float>(static_cast<int64_t>(kept.size()));
  stream_.copy_to_device(data, kept.data(), kept.size() * sizeof(float));
  return make_view<const float>(data, static_cast<int64_t>(kept.size()));
}

void ParameterLoader::finish() {
  stream_.synchronize();
  constants_.clear();
}

}  // namespace warprow
