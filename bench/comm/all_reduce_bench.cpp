// SPDX-License-Identifier: Apache-2.0
// What a sum over CPU ranks of one host costs, beside a memcpy of the same bytes. Ranks are threads with a device each, on
// cores of their own as far as there are cores: more ranks than cores show what waiting costs, not what adding does. The
// best of 30 times counts.
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/cpu/tcp_communicator.h"
#include "comm/shared_memory.h"
#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <sched.h>
#include <thread>
#include <vector>

namespace warprow {
namespace {

constexpr int32_t kRepeats = 30;

// How many are timed at a time.
int32_t num_sums(size_t bytes) {
  return static_cast<int32_t>(std::clamp<size_t>((8 << 20) / bytes, 2, 20));
}

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double memcpy_us(size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  std::vector<double> times;
  times.reserve(kRepeats);
  for (int32_t i = 0; i < kRepeats; ++i) {
    const auto start = Clock::now();
    for (int32_t k = 0; k < num_sums(bytes); ++k) {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" : : "r"(to.data()) : "memory");
    }
    times.push_back(us_since(start) / num_sums(bytes));
  }
  return *std::min_element(times.begin(), times.end());
}

void keep_to_core(int32_t rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(rank % cpu::usable_cores()), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// The time of one sum for each size, on one rank.
std::vector<double> sum_times(Communicator& comm, const std::vector<size_t>& sizes) {
  keep_to_core(comm.place().rank);
  const auto device = cpu::make_cpu_device({.num_threads = 1, .mode = cpu::CpuStreamMode::kInline});
  const auto stream = device->make_stream();
  std::vector<double> best;
  for (const size_t bytes : sizes) {
    std::vector<float> values(bytes / sizeof(float));
    const auto view = make_view(values.data(), 1, static_cast<int64_t>(values.size()));
    std::vector<double> times;
    times.reserve(kRepeats);
    for (int32_t i = 0; i < kRepeats; ++i) {
      const auto start = Clock::now();
      for (int32_t k = 0; k < num_sums(bytes); ++k) {
        comm.all_reduce(*stream, view);
      }
      times.push_back(us_since(start) / num_sums(bytes));
    }
    best.push_back(*std::min_element(times.begin(), times.end()));
  }
  return best;
}

using Join = std::function<std::vector<double>(int32_t rank)>;

std::vector<double> on_ranks(int32_t size, const Join& join) {
  std::vector<double> times;
  std::vector<std::jthread> ranks;
  ranks.reserve(static_cast<size_t>(size));
  for (int32_t rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto own = join(rank);
      if (rank == 0) {
        times = std::move(own);
      }
    });
  }
  ranks.clear();
  return times;
}

std::vector<double> shared_memory_times(int32_t size, const std::vector<size_t>& sizes) {
  const SharedMemory memory = SharedMemory::create(shared_memory_communicator_bytes(size));
  AbortFlag abort;
  return on_ranks(size, [&](int32_t rank) {
    const auto comm = make_shared_memory_communicator({rank, size}, memory.data(), abort);
    return sum_times(*comm, sizes);
  });
}

std::vector<double> tcp_times(int32_t size, const std::vector<size_t>& sizes) {
  Listener listener(true, 0);
  const uint16_t port = listener.port();
  std::vector<int32_t> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return on_ranks(size, [&](int32_t rank) {
    AbortFlag abort;
    TcpHostGroup group({"127.0.0.1", port, "", {rank, size}},
                       abort,
                       std::chrono::seconds(20),
                       rank == 0 ? std::optional(std::move(listener)) : std::nullopt);
    const auto comm = make_tcp_communicator(group, members);
    auto times = sum_times(*comm, sizes);
    group.barrier();
    return times;
  });
}

int run() {
  const std::vector<size_t> sizes = {
      8 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20};
  std::vector<double> copies;
  for (const size_t bytes : sizes) {
    copies.push_back(memcpy_us(bytes));
  }
  const auto shared_2 = shared_memory_times(2, sizes);
  const auto shared_4 = shared_memory_times(4, sizes);
  const auto tcp_2 = tcp_times(2, sizes);
  const auto tcp_4 = tcp_times(4, sizes);
  std::printf("us for each sum, on %d cores\n", cpu::usable_cores());
  std::printf("%8s %10s %10s %10s %10s %10s\n",
              "KiB",
              "memcpy",
              "shared x2",
              "shared x4",
              "tcp x2",
              "tcp x4");
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::printf("%8zu %10.1f %10.1f %10.1f %10.1f %10.1f\n",
                sizes[i] >> 10,
                copies[i],
                shared_2[i],
                shared_4[i],
                tcp_2[i],
                tcp_4[i]);
  }
  return 0;
}

}  // namespace
}  // namespace warprow

int main() { return warprow::run(); }
