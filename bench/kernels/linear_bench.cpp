// SPDX-License-Identifier: Apache-2.0
// Reports the time, the weight bytes read per second and the multiply-adds (counted as two) per second. Bounds for
// comparison: DRAM bandwidth for few tokens; for many tokens 64 int8 (16 f32) multiply-adds per cycle, core and vector
// pipe.
#include "kernels/linear/linear.h"

#include "base/cpu_isa.h"
#include "device/cpu/cpu_device.h"
#include "kernels/linear/cpu/pack.h"
#include "tests/support/packed_linear_case.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

namespace warprow {
namespace {

constexpr int64_t kMaxToks = 512;

// Aligned for huge pages, like an arena's weights.
std::byte* new_weights(size_t bytes) {
  constexpr size_t kAlign = size_t{2} << 20;
  return static_cast<std::byte*>(
      std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign));
}

PackedWeight random_weight(const testing::KindCase& kind, int32_t n, int32_t k) {
  PackedWeight w = kind.shape(n, k);
  std::byte* dst = new_weights(cpu::packed_bytes(w));
  std::mt19937 rng(static_cast<uint32_t>(n + k));
  testing::fill_packed(rng, w, dst);
  w.data = dst;
  return w;
}

struct Op {
  testing::PackedLinearCase linear;
  bool head = false;
};

// The matrices of SmolLM2-135M in its Q4_1 file. They exceed the last-level cache.
std::vector<Op> smollm2() {
  std::vector<Op> ops;
  const auto q4_1 = [](int32_t n, int32_t k) {
    return random_weight(testing::kind_case("q4_1"), n, k);
  };
  for (int layer = 0; layer < 30; ++layer) {
    ops.push_back({{{q4_1(576, 576), q4_1(192, 576), q4_1(192, 576)}}});
    ops.push_back({{{q4_1(576, 576)}}});
    ops.push_back({{{q4_1(1536, 576), q4_1(1536, 576)}}});
    ops.push_back({{{q4_1(576, 1536)}}});
  }
  ops.push_back({{{random_weight(testing::kind_case("q8_0"), 49152, 576)}}, true});
  return ops;
}

class Bench {
 public:
  static Bench& get() {
    static Bench bench;
    return bench;
  }

  void run(const Op& op, int64_t num_toks, ActFormat act) {
    linear(*stream_, op.linear.args(x_.data(), num_toks, y_.data(), act, scratch_));
  }

  const std::vector<Op>& model() const { return model_; }

 private:
  Bench()
      : device_(cpu::make_cpu_device({.mode = cpu::CpuStreamMode::kInline})),
        stream_(device_->make_stream()),
        model_(smollm2()),
        x_(static_cast<size_t>(kMaxToks * 1536)),
        y_(static_cast<size_t>(kMaxToks * 3072 + 64 * 49152)),
        scratch_(new_weights(cpu::linear_scratch_bytes(kMaxToks, 1536))) {
    for (size_t i = 0; i < x_.size(); ++i) {
      x_[i] = static_cast<float>(i % 61) - 30.0F;
    }
  }

  std::unique_ptr<cpu::CpuDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Op> model_;
  std::vector<float> x_;
  std::vector<float> y_;
  std::byte* scratch_;
};

void count(benchmark::State& state, double bytes, double ops, int64_t num_toks) {
  const auto rate = [&](double per_iteration) {
    return benchmark::Counter(per_iteration, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GB/s"] = rate(bytes * 1e-9);
  state.counters["GOP/s"] = rate(ops * 1e-9);
  state.counters["tok/s"] = rate(static_cast<double>(num_toks));
  state.SetLabel(cpu_isa_name(cpu_isa()));
}

ActFormat act_of(const benchmark::State& state) {
  return state.range(0) == 0 ? ActFormat::kF32 : ActFormat::kRounded;
}

// All matrices of one step. The LM head runs for every token up to 64 (decode), else for one token (prefill).
void smollm2_step(benchmark::State& state) {
  Bench& bench = Bench::get();
  const int64_t num_toks = state.range(1);
  const ScopedCpuIsa isa(static_cast<CpuIsa>(state.range(2)));
  double bytes = 0;
  double ops = 0;
  for (const Op& op : bench.model()) {
    bytes += op.linear.weight_bytes();
    ops += op.linear.flops(op.head && num_toks > 64 ? 1 : num_toks);
  }
  for (auto _ : state) {
    for (const Op& op : bench.model()) {
      bench.run(op, op.head && num_toks > 64 ? 1 : num_toks, act_of(state));
    }
  }
  count(state, bytes, ops, num_toks);
}
BENCHMARK(smollm2_step)
    ->ArgNames({"int8", "toks", "isa"})
    ->ArgsProduct({{0, 1}, {1, 2, 4, 8, 16, 64, 512}, {2, 4}})
    ->ArgsProduct({{0, 1}, {1, 16, 512}, {1}})
    ->Args({0, 1, 0})
    ->Args({1, 1, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Repeats one operation with its weights in cache: the speed of the kernel without the memory bound.
void one_op(benchmark::State& state) {
  Bench& bench = Bench::get();
  const Op& op = bench.model()[static_cast<size_t>(state.range(2))];
  for (auto _ : state) {
    bench.run(op, state.range(1), act_of(state));
  }
  count(state, op.linear.weight_bytes(), op.linear.flops(state.range(1)), state.range(1));
}
BENCHMARK(one_op)
    ->ArgNames({"int8", "toks", "op"})
    ->ArgsProduct({{0, 1}, {1, 4, 16, 512}, {0, 1, 2, 3}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace warprow
