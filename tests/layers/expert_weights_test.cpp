// SPDX-License-Identifier: Apache-2.0
// The ways of gpt-oss's experts to a device, from the tiny models' tensors of all experts: matrices with inputs as rows,
// gate and up in turn, and pairs of tensors in MXFP4. The references read the tensors element by element.
#include "base/dtype.h"
#include "device/cpu/cpu_device.h"
#include "kernels/embedding/embedding.h"
#include "kernels/experts/mxfp4_tiles.h"
#include "layers/parameter_loader.h"
#include "tests/support/source_path.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr int64_t kExperts = 4;
constexpr int64_t kHidden = 96;
constexpr int64_t kInner = 64;
const std::string kPrefix = "model.layers.1.mlp.experts.";

class ExpertWeights : public ::testing::Test {
 protected:
  ExpertWeights()
      : device_(cpu::make_cpu_device({.num_threads = 2})),
        stream_(device_->make_stream()),
        arena_(device_->make_arena(ArenaPurpose::kWeights, size_t{8} << 20)) {}

  static Checkpoint open(const std::string& model) {
    return value_or_throw(Checkpoint::open(
        {ModelFiles::Kind::kHfDir, test::source_path("tests/golden/tiny/" + model), model}));
  }

  // A layer's gate and up rows, or its down rows, of an expert.
  static TensorSpec spec(bool down, int64_t expert, const WeightFormat* format) {
    const int64_t rows = down ? kHidden : 2 * kInner;
    const int64_t cols = down ? kInner : kHidden;
    TensorSpec spec{kPrefix + (down ? "down_proj" : "gate_up_proj"), rows, cols};
    spec.format = format;
    spec.transposed = format == nullptr;
    spec.slice = spec.transposed ? TensorSlice{kExperts * cols, rows, expert * cols, 0}
                                 : TensorSlice{kExperts * rows, cols, expert * rows, 0};
    if (!down) {
      spec.order = RowOrder::kRopePairs;
      spec.head_dim = 2 * kInner;
    }
    return spec;
  }

  // Element (row, col) of the matrix as the file has it: gate and up rows in turn.
  static float element(
      const Checkpoint& checkpoint, bool down, int64_t expert, int64_t row, int64_t col) {
    const std::string name = kPrefix + (down ? "down_proj" : "gate_up_proj");
    const int64_t rows = down ? kHidden : 2 * kInner;
    const int64_t cols = down ? kInner : kHidden;
    if (const TensorSource* plain = checkpoint.find(name)) {
      uint16_t bits = 0;
      std::memcpy(&bits, plain->data + ((expert * cols + col) * rows + row) * 2, 2);
      return bf16_to_f32(bits);
    }
    const int64_t at = (expert * rows + row) * cols + col;
    const auto two = static_cast<uint32_t>(checkpoint.find(name + "_blocks")->data[at / 2]);
    const auto scale = static_cast<int>(checkpoint.find(name + "_scales")->data[at / 32]);
    const uint32_t number = col % 2 == 0 ? two & 15U : two >> 4;
    constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
    const float value = std::ldexp(kMagnitudes[number & 7U], scale - 127);
    return number > 8U ? -value : value;  // a negative zero is read as 0
  }
  // The matrix with gate rows in front of up rows, of a rank's part of the rows and columns.
  static std::vector<float> expected(
      const Checkpoint& checkpoint, bool down, int64_t expert, int64_t rank, int64_t world) {
    std::vector<float> out;
    const int64_t rows = down ? kHidden : 2 * kInner / world;
    const int64_t cols = down ? kInner / world : kHidden;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t half = row / (rows / 2);
      const int64_t in_file = down ? row : rank * rows + row % (rows / 2) * 2 + half;
      for (int64_t col = 0; col < cols; ++col) {
        out.push_back(element(checkpoint, down, expert, in_file, (down ? rank * cols : 0) + col));
      }
    }
    return out;
  }

  static TensorSpec cut(TensorSpec spec, bool down, int32_t rank, int32_t world) {
    spec.shard = {down ? ShardRule::Axis::kCols : ShardRule::Axis::kRows, rank, world, 1};
    spec.head_dim /= world;
    return spec;
  }

  std::vector<float> values(const PackedWeight& weight) {
    std::vector<int32_t> ids(static_cast<size_t>(weight.n));
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> out(ids.size() * static_cast<size_t>(weight.k));
    embedding(*stream_,
              {make_view<const int32_t>(ids.data(), weight.n),
               weight,
               make_view(out.data(), int64_t{weight.n}, int64_t{weight.k})});
    stream_->synchronize();
    return out;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
};

TEST_F(ExpertWeights, BecomePanels) {
  for (const std::string model : {"gpt_oss", "gpt_oss_mxfp4"}) {
    const Checkpoint checkpoint = open(model);
    const bool mxfp4 = checkpoint.has_mxfp4_experts();
    ASSERT_EQ(mxfp4, model == "gpt_oss_mxfp4");
    const WeightFormat* format = mxfp4 ? &mxfp4_pair_format(device_->facts()) : nullptr;
    ParameterLoader loader(checkpoint, *stream_, arena_);
    for (const bool down : {false, true}) {
      for (const int32_t world : {1, 2}) {
        const int32_t rank = world - 1;
        const std::vector<TensorSpec> specs{cut(spec(down, 3, format), down, rank, world),
                                            cut(spec(down, 1, format), down, rank, world)};
        const PackedWeight weight = loader.stacked(specs);
        loader.finish();
        EXPECT_EQ(weight.kind, mxfp4 ? PackedKind::kMxfp4 : PackedKind::kBF16);
        std::vector<float> wanted = expected(checkpoint, down, 3, rank, world);
        const std::vector<float> second = expected(checkpoint, down, 1, rank, world);
        wanted.insert(wanted.end(), second.begin(), second.end());
        EXPECT_EQ(values(weight), wanted) << model << " down " << down << " world " << world;
      }
    }
  }
}

// As on CUDA, where weights are rows.
TEST_F(ExpertWeights, BecomeRows) {
  for (const std::string model : {"gpt_oss", "gpt_oss_mxfp4"}) {
    const Checkpoint checkpoint = open(model);
    WeightFormat format = checkpoint.has_mxfp4_experts() ? mxfp4_pair_format(device_->facts())
                                                         : weight_format_of(TensorType::kBF16);
    format.cpu = format.cuda;
    ParameterLoader loader(checkpoint, *stream_, arena_);
    for (const bool down : {false, true}) {
      for (const int32_t world : {1, 2}) {
        TensorSpec one = cut(spec(down, 2, nullptr), down, 1 % world, world);
        if (checkpoint.has_mxfp4_experts()) {
          one = cut(spec(down, 2, &format), down, 1 % world, world);
        }
        one.format = &format;
        const PackedWeight weight = loader.matrix(one);
        loader.finish();
        const std::vector<float> wanted = expected(checkpoint, down, 2, 1 % world, world);
        const auto* rows = reinterpret_cast<const uint16_t*>(weight.data);
        for (size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_EQ(rows[i], f32_to_bf16(wanted[i])) << model << " down " << down << " " << i;
        }
      }
    }
  }
}

// Hopper's form: the same tiles as of the numbers and scales one by one.
TEST_F(ExpertWeights, BecomeTiles) {
  const Checkpoint checkpoint = open("gpt_oss_mxfp4");
  DeviceFacts hopper;
  hopper.kind = DeviceKind::kCuda;
  hopper.compute_capability = 90;
  WeightFormat format = mxfp4_pair_format(hopper);
  ASSERT_EQ(format.cuda.repack, Repack::kMxfp4Tiles);
  hopper.compute_capability = 80;
  EXPECT_EQ(mxfp4_pair_format(hopper).cuda.repack, Repack::kBf16Rows);
  format.cpu = format.cuda;
  ParameterLoader loader(checkpoint, *stream_, arena_);
  for (const bool down : {false, true}) {
    const int64_t rows = down ? kHidden : 2 * kInner;
    const int64_t cols = down ? kInner : kHidden;
    const std::vector<TensorSpec> specs{spec(down, 2, &format), spec(down, 0, &format)};
    const size_t used = arena_.used();
    const PackedWeight weight = loader.stacked(specs);
    EXPECT_EQ(arena_.used() - used, 2 * mxfp4_tiles_bytes(rows, cols));
    loader.finish();
    EXPECT_EQ(weight.kind, PackedKind::kMxfp4);
    const std::string name = kPrefix + (down ? "down_proj" : "gate_up_proj");
    const auto bytes_of = [&](const std::string& suffix, int64_t expert, int64_t each) {
      const auto* data =
          reinterpret_cast<const uint8_t*>(checkpoint.find(name + suffix)->data) + expert * each;
      return std::span<const uint8_t>(data, static_cast<size_t>(each));
    };
    const size_t tile_bytes = mxfp4_tiles_bytes(kMxfp4TileRows, cols);
    std::vector<uint8_t> wanted(2 * mxfp4_tiles_bytes(rows, cols));
    uint8_t* at = wanted.data();
    for (const int64_t expert : {2, 0}) {
      for (int64_t tile = 0; tile * kMxfp4TileRows < rows; ++tile, at += tile_bytes) {
        ASSERT_TRUE(pack_mxfp4_tiles(bytes_of("_blocks", expert, rows * cols / 2),
                                     bytes_of("_scales", expert, rows * cols / 32),
                                     rows,
                                     cols,
                                     down ? Mxfp4Rows::kPlain : Mxfp4Rows::kAlternating,
                                     tile,
                                     {at, tile_bytes}));
      }
    }
    EXPECT_EQ(std::memcmp(weight.data, wanted.data(), wanted.size()), 0) << "down " << down;
  }
}

// GGUF has gate and up rows in two tensors, and another order of numbers in a block: the same tiles.
TEST_F(ExpertWeights, OfGgufBecomeTheSameTiles) {
  const Checkpoint pairs = open("gpt_oss_mxfp4");
  const std::string file = test::source_path("tests/golden/tiny/gpt_oss_mxfp4/model.gguf");
  const Checkpoint blocks =
      value_or_throw(Checkpoint::open({ModelFiles::Kind::kGguf, file, "gpt_oss_mxfp4"}));
  DeviceFacts hopper;
  hopper.kind = DeviceKind::kCuda;
  hopper.compute_capability = 90;
  WeightFormat of_pairs = mxfp4_pair_format(hopper);
  WeightFormat of_blocks = mxfp4_blocks_format();
  ASSERT_EQ(of_blocks.cuda.repack, Repack::kMxfp4Tiles);
  of_pairs.cpu = of_pairs.cuda;
  of_blocks.cpu = of_blocks.cuda;
  ParameterLoader from_pairs(pairs, *stream_, arena_);
  ParameterLoader from_blocks(blocks, *stream_, arena_);
  for (const bool down : {false, true}) {
    for (const int32_t world : {1, 2}) {
      const int64_t rows = down ? kHidden : kInner;
      const int64_t cols = down ? kInner : kHidden;
      TensorSpec of_gguf{std::string("blk.1.ffn_") + (down ? "down" : "gate") + "_exps.weight",
                         down ? rows : 2 * rows,
                         cols};
      of_gguf.slice = {kExperts * rows, cols, 3 * rows, 0};
      of_gguf.second_half = down ? "" : "blk.1.ffn_up_exps.weight";
      of_gguf.format = &of_blocks;
      const PackedWeight got = from_blocks.matrix(cut(of_gguf, down, world - 1, world));
      from_blocks.finish();
      const PackedWeight wanted =
          from_pairs.matrix(cut(spec(down, 3, &of_pairs), down, world - 1, world));
      from_pairs.finish();
      EXPECT_EQ(got.kind, PackedKind::kMxfp4);
      ASSERT_EQ(got.n, wanted.n);
      ASSERT_EQ(got.k, wanted.k);
      EXPECT_EQ(std::memcmp(got.data, wanted.data, mxfp4_tiles_bytes(got.n, got.k)), 0)
          << "down " << down << " world " << world;
    }
  }
}

// Those of a GPU's tiles are its own kernel's (ExpertProductsCuda).
TEST_F(ExpertWeights, RandomOnesAreNearTheDeviationThatIsWanted) {
  const Checkpoint checkpoint = open("gpt_oss_mxfp4");
  ParameterLoader loader(checkpoint, *stream_, arena_, LoadFormat::kDummy);
  for (const bool down : {false, true}) {
    const PackedWeight panels =
        loader.matrix(cut(spec(down, 1, &mxfp4_pair_format(device_->facts())), down, 1, 2));
    loader.finish();
    ASSERT_EQ(panels.kind, PackedKind::kMxfp4);
    const std::vector<float> decoded = values(panels);
    double squares = 0.0;
    for (const float value : decoded) {
      squares += double{value} * value;
    }
    const double deviation = std::sqrt(squares / static_cast<double>(decoded.size()));
    const double wanted = 2.0 / std::sqrt(static_cast<double>(down ? kInner : kHidden));
    EXPECT_GT(deviation, wanted / 1.6);
    EXPECT_LT(deviation, wanted * 1.6);
  }
}

TEST_F(ExpertWeights, QuantisedTensorsAreNotTransposed) {
  const Checkpoint checkpoint = value_or_throw(
      Checkpoint::open({ModelFiles::Kind::kGguf,
                        test::source_path("tests/golden/tiny/gpt_oss_mxfp4/model.gguf"),
                        "gpt_oss_mxfp4"}));
  TensorSpec whole{"blk.0.ffn_down_exps.weight", kInner, kExperts * kHidden};
  whole.transposed = true;
  const WeightFormat& format = weight_format_of(TensorType::kMXFP4);
  const auto region = rank_region(whole, format, format.sources[0], *checkpoint.find(whole.name));
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().message,
            "tensor blk.0.ffn_down_exps.weight: MXFP4 cannot be transposed");
}

}  // namespace
}  // namespace warprow
