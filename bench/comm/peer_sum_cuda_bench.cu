// SPDX-License-Identifier: Apache-2.0
// All-reduces of two GPUs, through each other's memory and with NCCL: microseconds of each of 50 in one graph. Ranks are
// threads. Needs two GPUs; NCCL is left out where it is not found.
#include "base/error.h"
#include "comm/cuda/cuda_ranks.h"
#include "comm/cuda/peer_sizes.h"
#include "comm/shared_host_group.h"
#include "comm/shared_memory.h"
#include "tests/support/peer_ranks.h"

#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench/kernels/cuda_timing.h"

namespace warprow::test {
namespace {

constexpr int32_t kRanks = 2;
constexpr int kCalls = 50;
constexpr std::array<int64_t, 11> kBytes = {8 << 10,
                                            16 << 10,
                                            64 << 10,
                                            256 << 10,
                                            512 << 10,
                                            520 << 10,
                                            1 << 20,
                                            2 << 20,
                                            4 << 20,
                                            16 << 20,
                                            128 << 20};
using Times = std::array<double, kBytes.size()>;

void measure(
    Communicator& comm, Device& device, Stream& stream, std::barrier<>& together, Times& times) {
  constexpr auto kMost = static_cast<size_t>(kBytes.back());
  Arena arena = device.make_arena(ArenaPurpose::kWorkspace, kMost);
  auto* const values = arena.alloc<float>(kMost / sizeof(float));
  stream.fill(values, 0, kMost);
  for (size_t i = 0; i < kBytes.size(); ++i) {
    const auto reduce = [&](int /*call*/) {
      const int64_t n = kBytes[i] / static_cast<int64_t>(sizeof(float));
      comm.all_reduce(stream, make_view(values, int64_t{1}, n));
    };
    reduce(0);  // NCCL connects by its first call
    stream.synchronize();
    together.arrive_and_wait();
    times[i] = cuda::graph_us(stream, kCalls, reduce);
  }
}

int run() {
  if (num_gpus() < kRanks) {
    std::printf("needs %d GPUs\n", kRanks);
    return 0;
  }
  const PeerRanks peers(kRanks, cuda::tensor_sizes());
  const SharedMemory memory = SharedMemory::create(4096 + shared_host_group_bytes(kRanks));
  AbortFlag& abort = AbortFlag::at(memory.data());
  std::barrier together(kRanks);
  Times own{};
  Times nccl{};
  bool has_nccl = true;
  {
    std::vector<std::jthread> threads;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto device = cuda::make_cuda_device(rank);
        const auto stream = device->make_stream();
        if (rank == 0) {
          std::printf("%s\n", device->facts().name.c_str());
        }
        Times mine{};
        measure(*peers.join(rank), *device, *stream, together, mine);
        Times with_nccl{};
        try {
          const auto all = make_shared_host_group(
              {rank, kRanks}, memory.data() + 4096, abort, std::chrono::seconds(30));
          const auto ranks = cuda::join_cuda_ranks(
              *device, rank_place(rank, kRanks, 1), *all, cuda::GpuTransport::kNccl);
          measure(*ranks->tensor(), *device, *stream, together, with_nccl);
        } catch (const StartupError& error) {
          if (rank == 0) {
            std::printf("no NCCL: %s\n", error.what());
            has_nccl = false;
          }
        }
        if (rank == 0) {
          own = mine;
          nccl = with_nccl;
        }
      });
    }
  }
  std::printf("all-reduce of float32, us in a graph\n%12s %10s %10s\n", "bytes", "own", "NCCL");
  for (size_t i = 0; i < kBytes.size(); ++i) {
    std::printf("%12lld %10.2f", static_cast<long long>(kBytes[i]), own[i]);
    if (has_nccl) {
      std::printf(" %10.2f", nccl[i]);
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace warprow::test

int main() { return warprow::test::run(); }
