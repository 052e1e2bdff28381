// SPDX-License-Identifier: Apache-2.0
#include "worker/device_ids.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

EngineConfig with_ids(const std::string& ids) {
  EngineConfig config;
  config.device_ids = ids;
  return config;
}

std::string refusal_of(const std::string& ids) {
  const Result<std::vector<int32_t>> read = parse_device_ids(ids);
  return read ? "" : read.error().message;
}

TEST(DeviceIds, AListIsRead) {
  EXPECT_EQ(*parse_device_ids("3"), std::vector<int32_t>{3});
  EXPECT_EQ(*parse_device_ids("2,0,11"), (std::vector<int32_t>{2, 0, 11}));
  EXPECT_TRUE(parse_device_ids("")->empty());
}

TEST(DeviceIds, WhatIsNoListIsRefused) {
  EXPECT_EQ(refusal_of("0,x"),
            "--device-ids: 'x' in '0,x' is no number of a GPU, which start at 0");
  for (const char* bad : {"-1", "0, 1", "1.5", "0,,1", ",0", "99999999999"}) {
    EXPECT_NE(refusal_of(bad), "") << bad;
  }
  EXPECT_EQ(refusal_of("0,1,"), "--device-ids: '0,1,' ends with a comma");
  EXPECT_EQ(refusal_of("1,0,1"),
            "--device-ids: 1 is there twice in '1,0,1'; each rank needs its own GPU");
}

TEST(DeviceIds, ARankTakesTheGpuOfItsPlace) {
  EXPECT_EQ(*device_ordinal(with_ids(""), 3, 4), 3);
  EXPECT_EQ(*device_ordinal(with_ids("5,2"), 0, 2), 5);
  EXPECT_EQ(*device_ordinal(with_ids("5,2"), 1, 2), 2);
}

TEST(DeviceIds, EveryRankNeedsOne) {
  EXPECT_EQ(device_ordinal(with_ids("5"), 0, 2).error().message,
            "--device-ids: '5' names 1 GPUs for the 2 ranks of this host; it must name one for "
            "each");
  EXPECT_FALSE(device_ordinal(with_ids("0,1,2"), 0, 2));
}

TEST(DeviceIds, ACpuHasNone) {
  EngineConfig config = with_ids("0");
  config.device = "cpu";
  EXPECT_EQ(device_ordinal(config, 0, 1).error().message,
            "--device-ids: '0' names GPUs, but --device is cpu");
  EXPECT_EQ(check_device(with_ids("4"), "cpu", "no CUDA device 4: there are 2").error().message,
            "--device-ids: '4' names a GPU that cannot be used: no CUDA device 4: there are 2");
  EXPECT_TRUE(check_device(with_ids("4"), "cuda", ""));
  EXPECT_TRUE(check_device(with_ids(""), "cpu", "no CUDA device"));
}

}  // namespace
}  // namespace warprow
