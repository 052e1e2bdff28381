// SPDX-License-Identifier: Apache-2.0
#include "weights/tensor_region.h"

#include "base/check.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

class Region : public ::testing::Test {
 protected:
  // Four rows of three blocks of 34 bytes.
  Region() : bytes_(4 * 102) {
    tensor_.name = "q";
    tensor_.type = TensorType::kQ8_0;
    tensor_.rows = 4;
    tensor_.cols = 96;
    tensor_.row_bytes = 102;
    tensor_.bytes = bytes_.size();
    tensor_.data = bytes_.data();
    tensor_.offset = 1000;
  }
  std::vector<std::byte> bytes_;
  TensorSource tensor_;
};

TEST_F(Region, AllOfATensorIsContiguous) {
  const TensorRegion all(tensor_);
  EXPECT_TRUE(all.contiguous());
  EXPECT_EQ(all.rows(), 4);
  EXPECT_EQ(all.cols(), 96);
  EXPECT_EQ(all.bytes(), 408U);
  EXPECT_EQ(all.row(3), tensor_.data + 306);
  EXPECT_EQ(all.file_offset(3), 1306U);
}

TEST_F(Region, RowsAndColumnsOfBlocks) {
  const TensorRegion part(tensor_, 1, 2, 32, 64);
  EXPECT_FALSE(part.contiguous());
  EXPECT_EQ(part.row_bytes(), 68U);
  EXPECT_EQ(part.bytes(), 136U);
  EXPECT_EQ(part.row(0), tensor_.data + 102 + 34);
  EXPECT_EQ(part.row(1), tensor_.data + 204 + 34);
  EXPECT_EQ(part.file_offset(1), 1238U);
  EXPECT_TRUE(TensorRegion(tensor_, 2, 2, 0, 96).contiguous());
}

TEST_F(Region, WhatCutsABlockOrRunsOutOfTheTensorIsABug) {
  const ScopedCheckThrows throws;
  EXPECT_THROW(TensorRegion(tensor_, 0, 4, 16, 32), CheckFailure);
  EXPECT_THROW(TensorRegion(tensor_, 0, 4, 0, 48), CheckFailure);
  EXPECT_THROW(TensorRegion(tensor_, 3, 2, 0, 96), CheckFailure);
  EXPECT_THROW(TensorRegion(tensor_, 0, 4, 64, 64), CheckFailure);
}

}  // namespace
}  // namespace warprow
