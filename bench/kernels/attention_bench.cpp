// SPDX-License-Identifier: Apache-2.0
// Paged attention on the CPU. The layers' caches together exceed the last-level cache, as in a model. "GB/s" counts
// keys and values once per call and KV head (for decode, compare it with memory_bench). "GFLOP/s" counts QK and PV.
#include "device/cpu/cpu_device.h"
#include "kernels/attention/paged_attention.h"
#include "tests/support/attention_case.h"

#include <memory>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

namespace warprow {
namespace {

struct Shape {
  const char* name;
  int32_t num_q_heads, num_kv_heads, head_dim;
};
constexpr Shape kShapes[] = {
    {"SmolLM2-135M", 9, 3, 64}, {"Qwen3-0.6B", 16, 8, 128}, {"one KV head", 8, 1, 128}};

// Rows with num_queries queries each, at the end of `context` keys. Calls cycle through the layers.
class Batch {
 public:
  Batch(const Shape& shape, int32_t threads, int32_t rows, int32_t context, int32_t num_queries)
      : device_(
            cpu::make_cpu_device({.num_threads = threads, .mode = cpu::CpuStreamMode::kInline})),
        stream_(device_->make_stream()) {
    testing::AttentionCase c{
        .q_heads = shape.num_q_heads, .kv_heads = shape.num_kv_heads, .dim = shape.head_dim};
    c.rows.assign(static_cast<size_t>(rows), {num_queries, context});
    c.num_decode_rows = num_queries == 1 ? rows : 0;
    kv_bytes_ = c.kv_bytes();
    flops_ = c.flops();
    std::mt19937 rng(1);
    const testing::AttentionLayout layout(c, rng);
    args_ = layout.args(memory_);
    layer_ = layout.cache_elements;
    values_at_ = layout.values_at;
    num_layers_ = static_cast<int32_t>(kCacheElements / layer_ + 1);
    cache_.resize(static_cast<size_t>(num_layers_ * layer_));
    for (size_t i = 0; i < cache_.size(); ++i) {
      cache_[i] = static_cast<uint16_t>(0x3e00U + i * 2654435761U % 0x180U);  // 0.125 to 1
    }
    q_.assign(static_cast<size_t>(layout.num_toks() * layout.q_stride), 0.1F);
    out_.assign(static_cast<size_t>(layout.num_toks() * layout.q_cols()), 0.0F);
    scratch_.resize(paged_attention_scratch_bytes(args_.kv, shape.num_q_heads, rows, threads));
    args_.q =
        make_strided<const float>(q_.data(), layout.num_toks(), layout.q_cols(), layout.q_stride);
    args_.out = make_view(out_.data(), layout.num_toks(), layout.q_cols());
    args_.scratch = make_view(scratch_.data(), static_cast<int64_t>(scratch_.size()));
  }

  void run_layer() {
    args_.kv.k = reinterpret_cast<std::byte*>(cache_.data() + next_ * layer_);
    args_.kv.v = args_.kv.k + values_at_ * static_cast<int64_t>(sizeof(uint16_t));
    next_ = (next_ + 1) % num_layers_;
    paged_attention(*stream_, args_);
  }

  [[nodiscard]] double kv_bytes() const { return kv_bytes_; }
  [[nodiscard]] double flops() const { return flops_; }

 private:
  static constexpr int64_t kCacheElements = int64_t{96} << 20;

  std::unique_ptr<cpu::CpuDevice> device_;
  std::unique_ptr<Stream> stream_;
  testing::HostMemory memory_;
  std::vector<uint16_t> cache_;
  std::vector<float> q_, out_;
  std::vector<std::byte> scratch_;
  PagedAttentionArgs args_;
  int64_t layer_ = 0;      // in elements
  int64_t values_at_ = 0;  // in elements
  int32_t num_layers_ = 0;
  int32_t next_ = 0;
  double kv_bytes_ = 0;
  double flops_ = 0;
};

void paged_attention_layer(benchmark::State& state) {
  const auto arg = [&](int i) { return static_cast<int32_t>(state.range(i)); };
  const Shape& shape = kShapes[state.range(0)];
  Batch batch(shape, arg(1), arg(2), arg(3), arg(4));
  for (auto _ : state) {
    batch.run_layer();
  }
  const auto rate = [&](double per_iteration) {
    return benchmark::Counter(per_iteration, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GB/s"] = rate(batch.kv_bytes() * 1e-9);
  state.counters["GFLOP/s"] = rate(batch.flops() * 1e-9);
  state.SetLabel(shape.name);
}
BENCHMARK(paged_attention_layer)
    ->ArgNames({"shape", "threads", "rows", "context", "queries"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}, {1}, {256, 4096, 16384}, {1}})
    ->ArgsProduct({{0, 1}, {2}, {16}, {256, 4096}, {1}})
    ->ArgsProduct({{0, 1}, {1, 2}, {1}, {512, 4096, 16384}, {512}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace warprow
