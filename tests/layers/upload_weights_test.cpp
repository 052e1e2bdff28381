// SPDX-License-Identifier: Apache-2.0
#include "layers/upload_weights.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "layers/group_tiles.h"
#include "tests/layers/mixed_checkpoint.h"
#include "tests/support/tile_weights.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::MixedCheckpoint;

// The upload is the same on every device. A CPU device's memory can be inspected.
class UploadWeights : public ::testing::Test {
 protected:
  UploadWeights()
      : device_(cpu::make_cpu_device({.num_threads = 2})),
        arena_(device_->make_arena(ArenaPurpose::kWeights, size_t{64} << 20)) {}

  const uint16_t* add(const std::string& name, RowOrder order) {
    const TensorSource* tensor = value_or_throw(mixed_.checkpoint().require(name));
    auto* dst = arena_.alloc<uint16_t>(tensor->rows * tensor->cols);
    uploads_.push_back({TensorRegion(*tensor),
                        reinterpret_cast<std::byte*>(dst),
                        Repack::kBf16Rows,
                        order,
                        mixed_.kHeadDim});
    return dst;
  }
  void upload(const std::function<void(int64_t)>& progress = {}) {
    upload_weights(*device_, mixed_.checkpoint(), uploads_, progress);
  }

  MixedCheckpoint mixed_;
  std::unique_ptr<Device> device_;
  Arena arena_;
  std::vector<WeightUpload> uploads_;
};

TEST_F(UploadWeights, EveryFormatInBothOrdersBecomesRowsOfBf16) {
  ASSERT_EQ(mixed_.matrices().size(), static_cast<size_t>(kNumValueTypes) + 1);
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kRopePairs}) {
    std::vector<std::pair<std::string, const uint16_t*>> placed;
    for (const std::string& name : mixed_.matrices()) {
      if (order == RowOrder::kPlain || name != "large") {
        placed.emplace_back(name, add(name, order));
      }
    }
    upload();
    uploads_.clear();
    for (const auto& [name, data] : placed) {
      const std::vector<uint16_t> expected = mixed_.expected(name, order);
      EXPECT_EQ(std::vector<uint16_t>(data, data + expected.size()), expected) << name;
    }
  }
}

TEST_F(UploadWeights, EveryFormatInBothOrdersBecomesRowsOfFloat32) {
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kRopePairs}) {
    std::vector<std::pair<std::string, const float*>> placed;
    for (const std::string& name : mixed_.matrices()) {
      if (order == RowOrder::kPlain || name != "large") {
        const TensorSource* tensor = value_or_throw(mixed_.checkpoint().require(name));
        auto* dst = arena_.alloc<float>(tensor->rows * tensor->cols);
        uploads_.push_back({TensorRegion(*tensor),
                            reinterpret_cast<std::byte*>(dst),
                            Repack::kF32Rows,
                            order,
                            mixed_.kHeadDim});
        placed.emplace_back(name, dst);
      }
    }
    upload();
    uploads_.clear();
    for (const auto& [name, data] : placed) {
      const std::vector<float> expected = mixed_.expected_f32(name, order);
      EXPECT_EQ(std::vector<float>(data, data + expected.size()), expected) << name;
    }
  }
}

TEST_F(UploadWeights, QuantisedTypesInBothOrdersBecomeTiles) {
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kRopePairs}) {
    std::vector<WeightUpload> placed;
    for (const std::string& name : mixed_.matrices()) {
      const TensorSource* tensor = value_or_throw(mixed_.checkpoint().require(name));
      if (!is_quantised(tensor->type)) {
        continue;
      }
      WeightUpload upload{
          TensorRegion(*tensor), nullptr, Repack::kQuantTiles, order, mixed_.kHeadDim};
      upload.tiles = group_tiles_form(tensor->type);
      upload.tiles.n = static_cast<int32_t>(tensor->rows);
      upload.tiles.k = static_cast<int32_t>(tensor->cols);
      upload.dst = arena_.alloc_bytes(quant_tiles_bytes(upload.tiles));
      placed.push_back(upload);
    }
    ASSERT_EQ(placed.size(), 20U);
    uploads_ = placed;
    upload();
    uploads_.clear();
    for (const WeightUpload& upload : placed) {
      const std::string& name = upload.region.tensor().name;
      EXPECT_EQ(test::tile_weights(upload.tiles, upload.dst),
                mixed_.expected_tiles(name, order, upload.tiles.kind == PackedKind::kTable))
          << name;
    }
  }
}

TEST_F(UploadWeights, ReportsEveryByteOnce) {
  int64_t wanted = 0;
  for (const std::string& name : mixed_.matrices()) {
    add(name, RowOrder::kPlain);
    wanted += static_cast<int64_t>(uploads_.back().region.bytes());
  }
  std::vector<int64_t> reported;
  upload([&](int64_t bytes) { reported.push_back(bytes); });
  EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
  EXPECT_EQ(reported.back(), wanted);
  EXPECT_GT(reported.size(), mixed_.matrices().size()) << "the large one is uploaded in pieces";
}

TEST_F(UploadWeights, AFileThatBecameShorterIsNamed) {
  add("large", RowOrder::kPlain);
  std::filesystem::resize_file(mixed_.path(), 1 << 20);
  try {
    upload();
    FAIL() << "read past the end";
  } catch (const StartupError& error) {
    EXPECT_NE(std::string(error.what()).find("mixed.gguf"), std::string::npos) << error.what();
  }
}

TEST_F(UploadWeights, NothingToDo) { upload(); }

}  // namespace
}  // namespace warprow
