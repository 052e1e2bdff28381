// SPDX-License-Identifier: Apache-2.0
#include "layers/parameter_loader.h"

#include "base/check.h"
#include "base/error.h"
#include "kernels/linear/pack.h"
#include "kernels/random/fill_random.h"
#include "layers/pack_tensor.h"
#include "weights/dequantize.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace warprow {

namespace {

// FNV-1a: a tensor's own random numbers.
uint64_t seed_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

float dummy_scale(const TensorWish& wish) {
  return 2.0F / std::sqrt(static_cast<float>(wish.cols));
}

PackedWeight bf16_shape(int64_t rows, int64_t cols) {
  PackedWeight weight;
  weight.kind = PackedKind::kBF16;
  weight.n = static_cast<int32_t>(rows);
  weight.k = static_cast<int32_t>(cols);
  return weight;
}

}  // namespace

ParameterLoader::ParameterLoader(const Checkpoint& checkpoint,
                                 Stream& stream,
                                 Arena& arena,
                                 LoadFormat format,
                                 Progress progress)
    : checkpoint_(checkpoint),
      stream_(stream),
      arena_(arena),
      format_(format),
      progress_(std::move(progress)) {}

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
  return device_kind() == DeviceKind::kCuda ? stacked({&wish, 1}) : packed(wish);
}

PackedWeight ParameterLoader::stacked(std::span<const TensorWish> wishes) {
  WR_CHECK(device_kind() == DeviceKind::kCuda);
  int64_t rows = 0;
  for (const TensorWish& wish : wishes) {
    WR_CHECK_EQ(wish.cols, wishes[0].cols);
    rows += wish.rows;
  }
  PackedWeight weight = bf16_shape(rows, wishes[0].cols);
  auto* dst = reinterpret_cast<std::byte*>(arena_.alloc<uint16_t>(rows * wishes[0].cols));
  weight.data = dst;
  for (const TensorWish& wish : wishes) {
    const int64_t elements = wish.rows * wish.cols;
    if (format_ == LoadFormat::kDummy) {
      fills_.push_back({dst, elements, seed_of(wish.name), dummy_scale(wish)});
    } else {
      uploads_.push_back({&source(wish), dst, wish.order, wish.head_dim});
    }
    dst += static_cast<size_t>(elements) * sizeof(uint16_t);
  }
  return weight;
}

PackedWeight ParameterLoader::packed(const TensorWish& wish) {
  if (format_ == LoadFormat::kDummy) {
    PackedWeight weight = bf16_shape(wish.rows, wish.cols);
    std::byte* data = arena_.alloc_bytes(cpu::packed_bytes(weight));
    weight.data = data;
    pack_random(stream_, {weight, data, seed_of(wish.name), dummy_scale(wish)});
    return weight;
  }
  const TensorSource& tensor = source(wish);
  PackedWeight weight = packed_shape(tensor);
  std::byte* data = arena_.alloc_bytes(cpu::packed_bytes(weight));
  weight.data = data;
  pack_tensor(stream_, {&checkpoint_, &tensor, weight, data, wish.order, wish.head_dim});
  report(tensor);
  return weight;
}

std::vector<float> ParameterLoader::read_vector(const TensorWish& wish) const {
  if (format_ == LoadFormat::kDummy) {
    const float value = wish.name.ends_with(".bias") ? 0.0F : 1.0F;
    return std::vector<float>(static_cast<size_t>(wish.cols), value);
  }
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
  if (format_ != LoadFormat::kDummy) {
    report(source(wish));
  }
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
  for (const RandomFill& fill : fills_) {
    fill_random(stream_, {reinterpret_cast<uint16_t*>(fill.dst), fill.n, fill.seed, fill.scale});
  }
  upload_weights(stream_.device(), checkpoint_, uploads_, [this](int64_t bytes) {
    if (progress_) {
      progress_(bytes_read_ + bytes);
    }
  });
  uploads_.clear();
  fills_.clear();
  stream_.synchronize();
  constants_.clear();
}

}  // namespace warprow
