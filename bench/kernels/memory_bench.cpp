// SPDX-License-Identifier: Apache-2.0
// The read bandwidth of this machine's memory, which bounds a decode step at batch 1 (docs/adr/0014). A step of
// SmolLM2's Q4_1 file reads 96 MiB. A large last-level cache keeps a part of 96 MiB between repetitions, and nothing of
// 512 MiB.
#include "device/cpu/compute_pool.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sys/mman.h>

#include <benchmark/benchmark.h>

namespace warprow {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMost = 512 * kMiB;

// In huge pages, like an arena's weights.
const std::byte* new_memory() {
  void* memory = std::aligned_alloc(2 * kMiB, kMost);
  madvise(memory, kMost, MADV_HUGEPAGE);
  std::memset(memory, 1, kMost);
  return static_cast<const std::byte*>(memory);
}

void read_memory(benchmark::State& state) {
  using Lanes = uint64_t __attribute__((vector_size(64)));
  static const std::byte* const memory = new_memory();
  cpu::ComputePool pool(static_cast<int32_t>(state.range(0)));
  for (auto _ : state) {
    pool.parallel_for(state.range(1), 1, [&](int64_t begin, int64_t end, int32_t) {
      Lanes sums[8] = {};
      const std::byte* last = memory + end * kMiB;
      for (const std::byte* p = memory + begin * kMiB; p < last; p += sizeof(sums)) {
        for (size_t i = 0; i < std::size(sums); ++i) {
          Lanes x;
          std::memcpy(&x, p + i * sizeof(x), sizeof(x));
          sums[i] += x;
        }
      }
      benchmark::DoNotOptimize(sums);
    });
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(state.range(1) * kMiB) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(read_memory)
    ->ArgNames({"threads", "MiB"})
    ->ArgsProduct({{1, 2}, {96, 512}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace warprow
