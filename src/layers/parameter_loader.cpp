// SPDX-License-Identifier: Apache-2.0
#include "layers/parameter_loader.h"

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "kernels/random/fill_random.h"
#include "layers/pack_tensor.h"
#include "weights/dequantize.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace warprow {

namespace {

// FNV-1a of the name, so that each tensor has its own random numbers.
uint64_t seed_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

float dummy_scale(const TensorSpec& spec) {
  return 2.0F / std::sqrt(static_cast<float>(spec.cols));
}

// Random numbers are a function of the place in the whole tensor, so only whole tensors can be made.
void check_whole(const TensorSpec& spec) {
  const bool cut = spec.shard.axis != ShardRule::Axis::kWhole && spec.shard.world > 1;
  if (cut || spec.slice.tensor_rows > 0 || spec.slice.tensor_cols > 0) {
    throw StartupError(ErrorCode::kUnsupported,
                       fmt::format("tensor {}: parts of random weights cannot be made", spec.name));
  }
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

const WeightFormat& ParameterLoader::format_of(const TensorSpec& spec) const {
  if (format_ == LoadFormat::kDummy) {
    return random_format();
  }
  if (spec.format != nullptr) {
    return *spec.format;
  }
  return weight_format_of(value_or_throw(checkpoint_.require_values(spec.name))->type);
}

void ParameterLoader::report(size_t bytes) {
  bytes_read_ += static_cast<int64_t>(bytes);
  if (progress_) {
    progress_(bytes_read_);
  }
}

bool ParameterLoader::stacks(std::span<const TensorSpec> specs) const {
  for (size_t i = 1; i < specs.size(); ++i) {
    const WeightFormat& upper = format_of(specs[i - 1]);
    const WeightFormat& lower = format_of(specs[i]);
    const bool whole_groups = specs[i - 1].rows % upper.alignment.rows == 0;
    if (!whole_groups || upper.sources.size() != lower.sources.size() ||
        !warprow::stacks(upper.on(device_kind()), lower.on(device_kind()))) {
      return false;
    }
  }
  return true;
}

PackedWeight ParameterLoader::stacked(std::span<const TensorSpec> specs) {
  WR_CHECK(stacks(specs));
  if (format_ == LoadFormat::kDummy) {
    return random(specs);
  }
  int64_t rows = 0;
  int64_t cols = 0;
  for (const TensorSpec& spec : specs) {
    const ShardAlignment& alignment = format_of(spec).alignment;
    rows += value_or_throw(shard_rows(spec, alignment)).count;
    const int64_t spec_cols = value_or_throw(shard_cols(spec, alignment)).count;
    WR_CHECK(cols == 0 || cols == spec_cols, "{} has {} columns", spec.name, spec_cols);
    cols = spec_cols;
  }
  size_t bytes = 0;
  const std::vector<PlacedSource> sources = place(specs, bytes);
  PackedWeight weight = sized_product(format_of(specs.front()).on(device_kind()), rows, cols);
  std::byte* data = arena_.alloc_bytes(bytes);
  weight.data = data;
  for (const PlacedSource& source : sources) {
    load(source, weight, data);
  }
  return weight;
}

// Source after source, each for all specs: the parts of one tensor of a matrix are contiguous.
std::vector<ParameterLoader::PlacedSource> ParameterLoader::place(std::span<const TensorSpec> specs,
                                                                  size_t& bytes) const {
  std::vector<PlacedSource> placed;
  for (size_t i = 0; i < format_of(specs.front()).sources.size(); ++i) {
    bytes = round_up(bytes, kSourceAlignment);
    for (const TensorSpec& spec : specs) {
      const WeightFormat& format = format_of(spec);
      const DeviceForm& form = format.on(device_kind());
      const SourcePart& part = format.sources[i];
      const TensorSource& tensor = *value_or_throw(checkpoint_.require(part_name(spec.name, part)));
      if (tensor.type != part.type) {
        throw StartupError(ErrorCode::kCorrupt,
                           fmt::format("tensor {} has the type {}, the format {} wants {}",
                                       tensor.name,
                                       tensor_type_name(tensor.type),
                                       format.name,
                                       tensor_type_name(part.type)));
      }
      const TensorRegion region = value_or_throw(rank_region(spec, format, part, tensor));
      placed.push_back({&spec, &form, region, bytes});
      bytes += stored_bytes(form, part, region.rows(), region.cols());
    }
  }
  return placed;
}

void ParameterLoader::load(const PlacedSource& source,
                           const PackedWeight& weight,
                           std::byte* data) {
  const TensorSpec& spec = *source.spec;
  std::byte* dst = data + source.offset;
  if (source.form->repack == Repack::kPanels) {
    pack_tensor(stream_, {&checkpoint_, source.region, weight, dst, spec.order, spec.head_dim});
    report(source.region.bytes());
    return;
  }
  uploads_.push_back({source.region, dst, source.form->repack, spec.order, spec.head_dim});
}

PackedWeight ParameterLoader::random(std::span<const TensorSpec> specs) {
  const DeviceForm& form = random_format().on(device_kind());
  int64_t rows = 0;
  for (const TensorSpec& spec : specs) {
    check_whole(spec);
    WR_CHECK_EQ(spec.cols, specs[0].cols);
    rows += spec.rows;
  }
  PackedWeight weight = sized_product(form, rows, specs[0].cols);
  std::byte* dst = arena_.alloc_bytes(stored_bytes(form, {}, rows, specs[0].cols));
  weight.data = dst;
  if (form.repack == Repack::kPanels) {
    pack_random(stream_, {weight, dst, seed_of(specs[0].name), dummy_scale(specs[0])});
    return weight;
  }
  for (const TensorSpec& spec : specs) {
    fills_.push_back({dst, spec.rows * spec.cols, seed_of(spec.name), dummy_scale(spec)});
    dst += stored_bytes(form, {}, spec.rows, spec.cols);
  }
  return weight;
}

std::vector<float> ParameterLoader::read_vector(const TensorSpec& spec) const {
  const IndexRange shard = value_or_throw(shard_cols(spec, {}));
  if (format_ == LoadFormat::kDummy) {
    const float value = spec.name.ends_with(".bias") ? 0.0F : 1.0F;
    return std::vector<float>(static_cast<size_t>(shard.count), value);
  }
  const TensorSource& tensor = *value_or_throw(checkpoint_.require_values(spec.name));
  TensorSpec whole = spec;
  whole.shard = {};
  const WeightFormat& format = weight_format_of(tensor.type);
  const TensorRegion region =
      value_or_throw(rank_region(whole, format, format.sources.front(), tensor));
  std::vector<float> values(static_cast<size_t>(spec.cols));
  dequantize_row(region.type(), region.row(0), values.data(), spec.cols);
  std::vector<float> part(static_cast<size_t>(shard.count));
  for (size_t i = 0; i < part.size(); ++i) {
    const int64_t element = shard.begin + static_cast<int64_t>(i);
    part[i] = values[static_cast<size_t>(source_row(spec.order, element, spec.head_dim))];
  }
  return part;
}

View<const float, 1> ParameterLoader::vector(const TensorSpec& spec) {
  std::vector<float> values = read_vector(spec);
  if (format_ != LoadFormat::kDummy) {
    const TensorSource& tensor = *value_or_throw(checkpoint_.require(spec.name));
    report(tensor_row_bytes(tensor.type, spec.cols));
  }
  return constants(std::move(values));
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
