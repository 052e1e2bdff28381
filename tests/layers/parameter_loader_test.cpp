// SPDX-License-Identifier: Apache-2.0
#include "layers/parameter_loader.h"

#include "device/cpu/cpu_device.h"
#include "device/shape_only.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear/cpu/pack.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "layers/pack_tensor.h"
#include "tests/layers/mixed_checkpoint.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/tile_weights.h"

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Bytes;
using test::MixedCheckpoint;
using test::SafetensorsWriter;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Axis = ShardRule::Axis;

// The message with which the function refuses.
template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const StartupError& error) {
    return error.what();
  }
  return "";
}

class Loading : public ::testing::Test {
 protected:
  Loading()
      : device_(cpu::make_cpu_device({.num_threads = 2})),
        stream_(device_->make_stream()),
        arena_(device_->make_arena(ArenaPurpose::kWeights, size_t{64} << 20)) {}

  ParameterLoader loader(const Checkpoint& checkpoint, LoadFormat format = LoadFormat::kAuto) {
    return {checkpoint, *stream_, arena_, format};
  }
  static Bytes bytes_at(const std::byte* data, size_t n) { return {data, data + n}; }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
};

class ParameterLoaderMixed : public Loading {
 protected:
  static constexpr int64_t kRows = MixedCheckpoint::kRows;
  static constexpr int64_t kCols = MixedCheckpoint::kCols;

  static TensorSpec spec(const std::string& name, Axis axis, int32_t rank, int32_t world) {
    TensorSpec spec{name, kRows, kCols};
    spec.shard = {axis, rank, world, 1};
    return spec;
  }
  Bytes load(const TensorSpec& spec) {
    ParameterLoader loader = this->loader(mixed_.checkpoint());
    const PackedWeight weight = loader.matrix(spec);
    loader.finish();
    return bytes_at(weight.data, cpu::packed_bytes(weight));
  }
  // The panels of a matrix that consists of exactly these columns.
  Bytes panels_of_columns(const std::string& name, int64_t first, int64_t count) {
    const TensorSource& tensor = *mixed_.checkpoint().find(name);
    const size_t begin = tensor_row_bytes(tensor.type, first);
    TensorSource part = tensor;
    part.cols = count;
    part.row_bytes = tensor_row_bytes(tensor.type, count);
    Bytes rows;
    for (int64_t row = 0; row < kRows; ++row) {
      const std::byte* from = tensor.data + static_cast<size_t>(row) * tensor.row_bytes + begin;
      rows.insert(rows.end(), from, from + part.row_bytes);
    }
    part.data = rows.data();
    part.bytes = rows.size();
    const PackedWeight weight =
        sized_product(weight_format_of(tensor.type).on(DeviceKind::kCpu), kRows, count);
    std::byte* data = arena_.alloc_bytes(cpu::packed_bytes(weight));
    pack_tensor(*stream_, {&mixed_.checkpoint(), TensorRegion(part), weight, data});
    stream_->synchronize();
    return bytes_at(data, cpu::packed_bytes(weight));
  }

  MixedCheckpoint mixed_;
};

TEST_F(ParameterLoaderMixed, ARankPacksItsRowsOfEveryFormat) {
  for (const std::string& name : mixed_.matrices()) {
    if (name == "large") {
      continue;
    }
    const Bytes whole = load(spec(name, Axis::kWhole, 0, 1));
    Bytes parts;
    for (int32_t rank = 0; rank < 3; ++rank) {  // 32 rows each, which is two panels
      const Bytes part = load(spec(name, Axis::kRows, rank, 3));
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(parts == whole) << name;
  }
}

TEST_F(ParameterLoaderMixed, ARankPacksItsColumnsOfEveryFormat) {
  for (const std::string& name : mixed_.matrices()) {
    if (name == "large") {
      continue;
    }
    for (int32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(load(spec(name, Axis::kCols, rank, 2)) ==
                  panels_of_columns(name, rank * int64_t{256}, 256))
          << name << " " << rank;
    }
    // Super-blocks of 256 cannot be split in two.
    const std::string why = refusal([&] { load(spec(name, Axis::kCols, 3, 4)); });
    if (tensor_type_traits(mixed_.checkpoint().find(name)->type).block_elems == 256) {
      EXPECT_THAT(why,
                  AllOf(HasSubstr("tensor " + name),
                        HasSubstr("4 ranks"),
                        HasSubstr("512 columns"),
                        HasSubstr("multiples of 256")));
    } else {
      EXPECT_EQ(why, "");
    }
  }
}

// Both ends of a fused matrix, and its middle columns.
TEST_F(ParameterLoaderMixed, ASliceIsAMatrixOfItsOwn) {
  TensorSpec whole{"Q4_0", kRows, kCols};
  TensorSpec upper{"Q4_0", 32, kCols};
  upper.slice = {kRows, kCols, 0, 0};
  TensorSpec lower{"Q4_0", 64, kCols};
  lower.slice = {kRows, kCols, 32, 0};
  Bytes parts = load(upper);
  const Bytes rest = load(lower);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_TRUE(parts == load(whole));
  TensorSpec middle{"Q4_0", kRows, 96};
  middle.slice = {kRows, kCols, 0, 64};
  EXPECT_TRUE(load(middle) == panels_of_columns("Q4_0", 64, 96));
  middle.slice.first_col = 48;
  EXPECT_THAT(refusal([&] { load(middle); }), HasSubstr("columns [48, 144) of 512 cut through"));
}

TEST_F(ParameterLoaderMixed, AKeptFormatIsUploadedUnchanged) {
  WeightFormat kept = weight_format_of(TensorType::kQ8_0);
  kept.cpu = {Repack::kKept, kept.cpu.product};
  const TensorSource& tensor = *mixed_.checkpoint().find("Q8_0");
  TensorSpec whole{"Q8_0", kRows, kCols};
  whole.format = &kept;
  TensorSpec cut = whole;
  cut.shard = {Axis::kCols, 1, 2, 1};
  cut.order = RowOrder::kRopePairs;
  cut.head_dim = MixedCheckpoint::kHeadDim;
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  const std::vector<TensorSpec> twice{whole, whole};
  ASSERT_TRUE(loader.stacks(twice));
  const size_t used = arena_.used();
  const PackedWeight stacked = loader.stacked(twice);
  EXPECT_EQ(arena_.used() - used, 2 * tensor.bytes);
  const PackedWeight part = loader.matrix(cut);
  loader.finish();
  EXPECT_EQ(stacked.kind, PackedKind::kQ8);
  EXPECT_EQ(stacked.n, 2 * kRows);
  EXPECT_EQ(bytes_at(stacked.data, tensor.bytes), bytes_at(tensor.data, tensor.bytes));
  EXPECT_EQ(bytes_at(stacked.data + tensor.bytes, tensor.bytes),
            bytes_at(tensor.data, tensor.bytes));
  EXPECT_EQ(part.k, kCols / 2);
  const size_t half = tensor.row_bytes / 2;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto from = static_cast<size_t>(rope_pair_row(row, MixedCheckpoint::kHeadDim));
    EXPECT_EQ(bytes_at(part.data + static_cast<size_t>(row) * half, half),
              bytes_at(tensor.data + from * tensor.row_bytes + half, half))
        << row;
  }
}

TEST_F(ParameterLoaderMixed, OnlyRowsOfOneKindStack) {
  const ParameterLoader loader = this->loader(mixed_.checkpoint());
  const std::vector<TensorSpec> parts{{"Q4_0", kRows, kCols}, {"Q6_K", kRows, kCols}};
  EXPECT_FALSE(loader.stacks(parts)) << "panels remain separate matrices";
  EXPECT_TRUE(loader.stacks({parts.data(), 1}));
}

// Slices in another order, as the gates and ups of experts lie.
TEST_F(ParameterLoaderMixed, WholePanelsOfOneKindAreOneMatrix) {
  const auto slice_of = [](const std::string& name, int64_t first, int64_t rows) {
    TensorSpec slice{name, rows, kCols};
    slice.slice = {kRows, kCols, first, 0};
    return slice;
  };
  for (const char* name : {"Q4_0", "Q6_K", "BF16"}) {
    const std::vector<TensorSpec> parts{
        slice_of(name, 48, 16), slice_of(name, 0, 48), slice_of(name, 64, 32)};
    ParameterLoader loader = this->loader(mixed_.checkpoint());
    const PackedWeight weight = loader.stacked(parts);
    loader.finish();
    EXPECT_EQ(weight.n, kRows);
    Bytes expected;
    for (const TensorSpec& part : parts) {
      const Bytes bytes = load(part);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
    EXPECT_TRUE(bytes_at(weight.data, cpu::packed_bytes(weight)) == expected) << name;
  }
}

TEST_F(ParameterLoaderMixed, WhatIsNoOneMatrixIsNamed) {
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  const std::vector<TensorSpec> kinds{{"Q4_0", kRows, kCols}, {"Q6_K", kRows, kCols}};
  EXPECT_EQ(refusal([&] { loader.stacked(kinds); }),
            "tensors Q4_0 (Q4_0, 96 rows) and Q6_K (Q6_K) cannot be one matrix");
  TensorSpec upper{"Q4_0", 24, kCols};
  upper.slice = {kRows, kCols, 0, 0};
  const std::vector<TensorSpec> cut{upper, {"Q4_0", kRows, kCols}};
  EXPECT_EQ(refusal([&] { loader.stacked(cut); }),
            "tensors Q4_0 (Q4_0, 24 rows) and Q4_0 (Q4_0) cannot be one matrix");
}

// What a GPU's plan counts, and how parts of one layer whose types differ become one matrix.
class ParameterLoaderOnGpu : public ParameterLoaderMixed {
 protected:
  void on(int32_t compute_capability) {
    DeviceFacts facts;
    facts.kind = DeviceKind::kCuda;
    facts.compute_capability = compute_capability;
    arena_ = Arena();
    stream_.reset();
    device_ = make_shape_only_device(facts);
    stream_ = device_->make_stream();
    arena_ = device_->make_arena(ArenaPurpose::kWeights, size_t{64} << 20);
  }
  static TensorSpec linear(const std::string& name, int64_t rows = kRows) {
    TensorSpec spec{name, rows, kCols};
    spec.of_linear = true;
    if (rows != kRows) {
      spec.slice = {kRows, kCols, 0, 0};
    }
    return spec;
  }
};

TEST_F(ParameterLoaderOnGpu, OnHopperQuantisedTypesOfLinearOperationsStaySmall) {
  on(90);
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  const auto bits = [&](const TensorSpec& spec) {
    const size_t used = arena_.used();
    loader.matrix(spec);
    return static_cast<double>(arena_.used() - used) * 8 / static_cast<double>(spec.rows * kCols);
  };
  EXPECT_EQ(bits(linear("Q4_K")), 5.0);
  EXPECT_EQ(bits(linear("Q4_0")), 4.5);
  EXPECT_EQ(bits(linear("Q6_K")), 7.0);
  EXPECT_EQ(bits(linear("Q8_0")), 8.5);
  EXPECT_EQ(bits(linear("BF16")), 16.0);
  EXPECT_EQ(bits({"Q4_K", kRows, kCols}), 16.0) << "an embedding's rows are looked up";
  EXPECT_EQ(bits(linear("Q4_K", 40)), 16.0) << "40 rows end within a tile";
  TensorSpec head{"Q6_K", kRows, kCols};
  head.of_head = true;
  EXPECT_EQ(bits(head), 7.0);
  ParameterLoader exact(mixed_.checkpoint(), *stream_, arena_, LoadFormat::kAuto, DType::kF32);
  EXPECT_EQ(exact.matrix(linear("Q4_K")).kind, PackedKind::kF32);
}

TEST_F(ParameterLoaderOnGpu, BeforeHopperTheyAreRowsOfBf16) {
  on(80);
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  EXPECT_EQ(loader.matrix(linear("Q4_K")).kind, PackedKind::kBF16);
}

TEST_F(ParameterLoaderOnGpu, ExpertsTakeTilesToo) {
  TensorSpec experts{"BF16", kRows, kCols};
  experts.of_experts = true;
  const auto load = [&](TensorSpec spec, DType rows = DType::kBF16) {
    ParameterLoader loader(mixed_.checkpoint(),
                           *stream_,
                           arena_,
                           LoadFormat::kAuto,
                           rows,
                           {},
                           {.rounds_to = QuantNumber::kF8, .exact = false, .rounds_inputs = true});
    return loader.matrix(spec);
  };
  on(90);
  const size_t used = arena_.used();
  const PackedWeight tiles = load(experts);
  EXPECT_EQ(tiles.kind, PackedKind::kF8) << "their products round no inputs";
  EXPECT_EQ(tiles.scales, ScaleForm::kBF16);
  EXPECT_EQ(arena_.used() - used, static_cast<size_t>(kRows * kCols) * 65 / 64);
  TensorSpec of_gguf = experts;
  of_gguf.name = "Q4_K";
  const PackedWeight groups = load(of_gguf);
  EXPECT_EQ(groups.kind, PackedKind::kQ4) << "a quantised type stays as it is";
  EXPECT_EQ(groups.scales, ScaleForm::kBF16);
  EXPECT_EQ(load(experts, DType::kF32).kind, PackedKind::kF32);
  on(80);
  EXPECT_EQ(load(experts).kind, PackedKind::kBF16);
}

TEST_F(ParameterLoaderOnGpu, PartsOfSeveralTypesShareTilesOrAreRows) {
  on(90);
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  const std::vector<TensorSpec> same{linear("Q4_K"), linear("Q4_1")};
  EXPECT_TRUE(loader.stacks(same));
  EXPECT_EQ(loader.stacked(same).kind, PackedKind::kQ4);
  const std::vector<TensorSpec> differ{linear("Q4_K"), linear("Q6_K")};
  EXPECT_TRUE(loader.stacks(differ));
  const PackedWeight weight = loader.stacked(differ);
  EXPECT_EQ(weight.kind, PackedKind::kQ6);
  EXPECT_EQ(weight.group, 16);
  const std::vector<TensorSpec> plain{linear("Q4_K"), linear("F16")};
  EXPECT_TRUE(loader.stacks(plain));
  EXPECT_EQ(loader.stacked(plain).kind, PackedKind::kBF16);
}

TEST_F(ParameterLoaderOnGpu, ACutThroughABlockIsRefusedByName) {
  on(90);
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  TensorSpec part = linear("Q4_K");
  part.shard = {Axis::kCols, 1, 2, 1};
  EXPECT_EQ(loader.matrix(part).k, kCols / 2);
  part.shard = {Axis::kCols, 3, 4, 1};
  EXPECT_THAT(refusal([&] { loader.matrix(part); }),
              AllOf(HasSubstr("tensor Q4_K"), HasSubstr("4 ranks"), HasSubstr("multiples of 256")));
}

// The numbers of such a stack, in a memory that can be read.
// Those of a matrix that is rounded while loading, or that its checkpoint quantises, have scales and groups of their own.
TEST_F(ParameterLoaderOnGpu, OnlyTilesOfGgufTypesAreShared) {
  on(90);
  ParameterLoader loader(mixed_.checkpoint(),
                         *stream_,
                         arena_,
                         LoadFormat::kAuto,
                         DType::kBF16,
                         {},
                         {.rounds_to = QuantNumber::kF8, .exact = false, .rounds_inputs = true});
  TensorSpec rounded{"BF16", kRows, kCols};
  rounded.of_experts = true;
  TensorSpec of_gguf = rounded;
  of_gguf.name = "Q4_K";
  for (const std::vector<TensorSpec>& parts :
       {std::vector{rounded, of_gguf}, std::vector{of_gguf, rounded}}) {
    EXPECT_TRUE(loader.stacks(parts));
    EXPECT_EQ(loader.stacked(parts).kind, PackedKind::kBF16);
  }
}

TEST_F(ParameterLoaderMixed, TilesOfSeveralTypesKeepTheirValues) {
  DeviceFacts hopper;
  hopper.compute_capability = 90;
  std::vector<WeightFormat> formats;
  std::vector<TensorSpec> specs;
  std::vector<uint16_t> expected;
  for (const char* name : {"Q4_K", "Q6_K", "Q5_0"}) {
    WeightFormat format =
        linear_format_of(mixed_.checkpoint().find(name)->type, hopper, kRows, kCols);
    format.cpu = format.cuda;
    formats.push_back(format);
    specs.push_back({name, kRows, kCols, RowOrder::kRopePairs, MixedCheckpoint::kHeadDim});
    const std::vector<uint16_t> rows = mixed_.expected_tiles(name, RowOrder::kRopePairs, false);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].format = &formats[i];
  }
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  const PackedWeight weight = loader.stacked(specs);
  loader.finish();
  EXPECT_EQ(weight.n, 3 * kRows);
  EXPECT_EQ(test::tile_weights(weight, weight.data), expected);
}

TEST_F(ParameterLoaderMixed, VectorsAreCutAsTheRowsTheyBelongTo) {
  const TensorSource& bias = *mixed_.checkpoint().find("bias");
  std::vector<float> stored(static_cast<size_t>(kRows));
  std::memcpy(stored.data(), bias.data, bias.bytes);
  TensorSpec weight = spec("Q4_0", Axis::kRows, 2, 3);
  weight.order = RowOrder::kRopePairs;
  weight.head_dim = MixedCheckpoint::kHeadDim;
  const TensorSpec part = bias_spec(weight, "bias");
  ParameterLoader loader = this->loader(mixed_.checkpoint());
  const std::vector<float> values = loader.read_vector(part);
  ASSERT_EQ(values.size(), 32U);
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t from = rope_pair_row(64 + static_cast<int64_t>(i), MixedCheckpoint::kHeadDim);
    EXPECT_EQ(values[i], stored[static_cast<size_t>(from)]) << i;
  }
  TensorSpec middle{"bias", 1, 10};
  middle.slice = {1, kRows, 0, 7};
  EXPECT_EQ(loader.read_vector(middle),
            std::vector<float>(stored.begin() + 7, stored.begin() + 17));
}

// Random numbers depend on the place in the whole tensor.
TEST_F(ParameterLoaderMixed, APartOfARandomMatrixHasItsNumbers) {
  constexpr int64_t kRandomRows = 32;
  constexpr int64_t kRandomCols = 54;
  ParameterLoader loader = this->loader(mixed_.checkpoint(), LoadFormat::kDummy);
  const auto values = [&](const TensorSpec& spec) {
    const PackedWeight weight = loader.matrix(spec);
    EXPECT_EQ(weight.kind, PackedKind::kBF16);
    loader.finish();
    std::vector<int32_t> ids(static_cast<size_t>(weight.n));
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> out(ids.size() * static_cast<size_t>(weight.k));
    embedding(*stream_,
              {make_view<const int32_t>(ids.data(), weight.n),
               weight,
               make_view(out.data(), int64_t{weight.n}, int64_t{weight.k})});
    stream_->synchronize();
    return out;
  };
  const TensorSpec whole{"x.weight", kRandomRows, kRandomCols};
  const std::vector<float> all = values(whole);
  const auto expect_part = [&](const TensorSpec& spec,
                               int64_t first_row,
                               int64_t rows,
                               int64_t first_col,
                               int64_t cols) {
    std::vector<float> expected;
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      const auto begin = all.begin() + row * kRandomCols + first_col;
      expected.insert(expected.end(), begin, begin + cols);
    }
    EXPECT_EQ(values(spec), expected);
  };
  TensorSpec part = whole;
  part.shard = {Axis::kRows, 1, 2, 1};
  expect_part(part, 16, 16, 0, kRandomCols);
  part.shard = {Axis::kCols, 2, 3, 1};
  expect_part(part, 0, kRandomRows, 36, 18);
  TensorSpec slice{"x.weight", 9, kRandomCols};
  slice.slice = {kRandomRows, kRandomCols, 21, 0};
  expect_part(slice, 21, 9, 0, kRandomCols);
  // Parts that are one matrix.
  slice.rows = 16;
  slice.slice.first_row = 16;
  TensorSpec upper = slice;
  upper.slice.first_row = 0;
  const std::vector<TensorSpec> swapped{slice, upper};
  const PackedWeight weight = loader.stacked(swapped);
  const PackedWeight first = loader.matrix(slice);
  const PackedWeight second = loader.matrix(upper);
  loader.finish();
  const size_t half = cpu::packed_bytes(first);
  EXPECT_EQ(bytes_at(weight.data, half), bytes_at(first.data, half));
  EXPECT_EQ(bytes_at(weight.data + half, half), bytes_at(second.data, half));
}

// A checkpoint with i8 matrices and a scale for each row and group of 32 columns.
class ParameterLoaderScaled : public Loading {
 protected:
  static constexpr int64_t kRows = 4;
  static constexpr int64_t kCols = 64;

  ParameterLoaderScaled() {
    format_.name = "scaled";
    format_.sources = {{"weight", TensorType::kI8}, {"weight_scale", TensorType::kF32, 1, 32}};
    format_.alignment = {1, 32};
    format_.cpu.repack = Repack::kKept;
    format_.cpu.product.kind = PackedKind::kQ8;
    SafetensorsWriter writer;
    for (const std::string name : {"a", "b"}) {
      Bytes values;
      for (int64_t i = 0; i < kRows * kCols; ++i) {
        values.push_back(static_cast<std::byte>(i * (name == "a" ? 3 : 5)));
      }
      values_[name] = values;
      for (int64_t i = 0; i < kRows * 2; ++i) {
        scales_[name].push_back(static_cast<float>(i) + (name == "a" ? 0.25F : 0.5F));
      }
      writer.add(name + ".weight", "I8", {kRows, kCols}, values);
      writer.add_f32(name + ".weight_scale", {kRows, 2}, scales_[name]);
    }
    writer.add("ids", "I64", {3}, Bytes(24));
    dir_.write("config.json", "{}");
    dir_.write("model.safetensors", writer.bytes());
    checkpoint_ = std::make_unique<Checkpoint>(value_or_throw(
        Checkpoint::open({ModelFiles::Kind::kHfDir, dir_.path().string(), "scaled"})));
  }
  TensorSpec spec(const std::string& name) const {
    TensorSpec spec{name + ".weight", kRows, kCols};
    spec.format = &format_;
    return spec;
  }

  test::TempDir dir_;
  WeightFormat format_;
  std::map<std::string, Bytes> values_;
  std::map<std::string, std::vector<float>> scales_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(ParameterLoaderScaled, SourceAfterSourceLiesTogether) {
  ParameterLoader loader = this->loader(*checkpoint_);
  const std::vector<TensorSpec> both{spec("a"), spec("b")};
  ASSERT_TRUE(loader.stacks(both));
  const PackedWeight weight = loader.stacked(both);
  loader.finish();
  EXPECT_EQ(weight.n, 8);
  EXPECT_EQ(weight.k, 64);
  EXPECT_EQ(bytes_at(weight.data, 256), values_["a"]);
  EXPECT_EQ(bytes_at(weight.data + 256, 256), values_["b"]);
  const auto* scales = reinterpret_cast<const float*>(weight.data + 512);
  EXPECT_EQ(std::vector<float>(scales, scales + 8), scales_["a"]);
  EXPECT_EQ(std::vector<float>(scales + 8, scales + 16), scales_["b"]);
}

TEST_F(ParameterLoaderScaled, ARankHasTheScalesOfItsColumns) {
  TensorSpec right = spec("a");
  right.shard = {Axis::kCols, 1, 2, 1};
  ParameterLoader loader = this->loader(*checkpoint_);
  const PackedWeight weight = loader.matrix(right);
  loader.finish();
  EXPECT_EQ(weight.k, 32);
  for (size_t row = 0; row < 4; ++row) {
    EXPECT_EQ(std::memcmp(weight.data + row * 32, values_["a"].data() + row * 64 + 32, 32), 0);
    float scale = 0.0F;
    std::memcpy(&scale, weight.data + kSourceAlignment + row * 4, sizeof(scale));
    EXPECT_EQ(scale, scales_["a"][2 * row + 1]);
  }
}

TEST_F(ParameterLoaderScaled, WhatIsNoFloatOrOfAnotherTypeIsNamed) {
  ParameterLoader loader = this->loader(*checkpoint_);
  EXPECT_THAT(refusal([&] { loader.matrix({"a.weight", kRows, kCols}); }),
              HasSubstr("tensor 'a.weight' has the type I8"));
  EXPECT_THAT(refusal([&] { loader.vector({"ids", 1, 3}); }),
              HasSubstr("tensor 'ids' has the type I64"));
  format_.sources[1].type = TensorType::kBF16;
  EXPECT_EQ(refusal([&] { loader.matrix(spec("b")); }),
            "tensor b.weight_scale has the type F32, the format scaled wants BF16");
  EXPECT_THAT(refusal([&] { loader.matrix(spec("c")); }), HasSubstr("no tensor 'c.weight'"));
}

}  // namespace
}  // namespace warprow
