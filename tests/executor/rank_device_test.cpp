// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_device.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

DeviceFacts gpu(const char* name, int32_t compute_capability = 90) {
  DeviceFacts facts;
  facts.kind = DeviceKind::kCuda;
  facts.name = name;
  facts.compute_capability = compute_capability;
  return facts;
}

std::string refusal(const std::vector<DeviceFacts>& devices) {
  std::vector<std::string> told;
  for (const DeviceFacts& facts : devices) {
    told.push_back(describe_rank_device(facts));
  }
  const Result<void> checked = check_rank_devices(told);
  return checked ? "" : checked.error().message;
}

TEST(RankDevice, RanksOfOneKindRun) {
  EXPECT_EQ(refusal({gpu("NVIDIA H200")}), "");
  EXPECT_EQ(refusal({gpu("NVIDIA H200"), gpu("NVIDIA H200"), gpu("NVIDIA H200")}), "");
  EXPECT_EQ(refusal({DeviceFacts{}, DeviceFacts{}}), "");
}

TEST(RankDevice, OtherGpusAreRefusedByRank) {
  EXPECT_EQ(refusal({gpu("NVIDIA H200"), gpu("NVIDIA H200"), gpu("NVIDIA A100", 80)}),
            "rank 2 runs on GPU 'NVIDIA A100' (compute capability 8.0) and rank 0 on GPU 'NVIDIA "
            "H200' (compute capability 9.0); all ranks need devices of one kind (--device, "
            "--device-ids)");
  EXPECT_EQ(refusal({gpu("NVIDIA H200"), DeviceFacts{}}),
            "rank 1 runs on a CPU and rank 0 on GPU 'NVIDIA H200' (compute capability 9.0); all "
            "ranks need devices of one kind (--device, --device-ids)");
}

TEST(RankDevice, EachRankNeedsItsOwnGpu) {
  EngineConfig config;
  config.device = "cuda";
  const std::string why = "no CUDA device 2: there are 2";
  const Result<void> checked = check_gpu(config, rank_place(2, 2, 2), why);
  ASSERT_FALSE(checked);
  EXPECT_EQ(
      checked.error().message,
      "--device: rank 2 of 4 has no GPU (no CUDA device 2: there are 2); each rank needs its own");
  EXPECT_TRUE(check_gpu(config, rank_place(1, 2, 2), ""));
  EXPECT_TRUE(check_gpu(config, rank_place(0, 1, 1), why));
  config.device = "auto";
  EXPECT_TRUE(check_gpu(config, rank_place(2, 2, 2), why));
}

TEST(RankDevice, ATransportIsForItsDevice) {
  EngineConfig config;
  const auto refused = [&](const char* transport, const char* device) {
    config.rank_transport = transport;
    const Result<void> checked = check_transport(config, device);
    return checked ? "" : checked.error().message;
  };
  for (const char* device : {"cpu", "cuda"}) {
    EXPECT_EQ(refused("auto", device), "");
  }
  EXPECT_EQ(refused("tcp", "cpu"), "");
  EXPECT_EQ(refused("nccl", "cuda"), "");
  EXPECT_EQ(refused("nccl", "cpu"), "--rank-transport: nccl is not for CPU ranks");
  EXPECT_EQ(refused("tcp", "cuda"), "--rank-transport: tcp is not for GPUs");
}

}  // namespace
}  // namespace warprow
