// SPDX-License-Identifier: Apache-2.0
// Paged attention on the CPU, over caches that are larger than the last-level cache together, as a model's layers are.
// "GB/s" counts keys and values once per call and KV head (for decode, compare it with memory_bench). "GFLOP/s" counts
// the two products.
#include "device/cpu/cpu_device.h"
#include "kernels/attention/paged_attention.h"
#include "tests/support/equal_tables.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
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
constexpr int32_t kBlockSize = 16;

// Rows with num_queries queries each at the end of `context` keys; layers in turns.
class Batch {
 public:
  Batch(const Shape& shape, int32_t threads, int32_t rows, int32_t context, int32_t num_queries)
      : device_(
            cpu::make_cpu_device({.num_threads = threads, .mode = cpu::CpuStreamMode::kInline})),
        stream_(device_->make_stream()) {
    const int32_t row_blocks = (context + kBlockSize - 1) / kBlockSize;
    const int64_t token = int64_t{shape.num_kv_heads} * shape.head_dim;
    const int64_t layer = int64_t{rows} * row_blocks * kBlockSize * token;
    num_layers_ = static_cast<int32_t>(kCacheElements / layer + 1);
    kv_bytes_ = 2.0 * rows * context * static_cast<double>(token) * sizeof(uint16_t);
    const double keys = context - (num_queries - 1) / 2.0;  // visible to a query, on average
    flops_ = 4.0 * rows * num_queries * keys * shape.num_q_heads * shape.head_dim;

    const auto elements = static_cast<size_t>(num_layers_ * layer);
    for (std::vector<uint16_t>* cache : {&k_, &v_}) {
      cache->resize(elements);
      for (size_t i = 0; i < elements; ++i) {
        (*cache)[i] = static_cast<uint16_t>(0x3e00U + i * 2654435761U % 0x180U);  // 0.125 to 1
      }
    }
    table_.resize(static_cast<size_t>(rows) * static_cast<size_t>(row_blocks));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
    begins_ = test::equal_begins(rows, row_blocks);
    lens_.assign(static_cast<size_t>(rows), context);
    for (int32_t r = 0; r <= rows; ++r) {
      rows_.push_back(r);
      starts_.push_back(r * num_queries);
    }
    const int64_t width = int64_t{shape.num_q_heads} * shape.head_dim;
    const int64_t num_toks = int64_t{rows} * num_queries;
    q_.assign(static_cast<size_t>(num_toks * width), 0.1F);
    out_.assign(q_.size(), 0.0F);

    layer_ = layer;
    KvLayerView& kv = args_.kv;
    kv.dtype = DType::kBF16;
    kv.block_size = kBlockSize;
    kv.num_kv_heads = shape.num_kv_heads;
    kv.head_dim_k = kv.head_dim_v = shape.head_dim;
    kv.block_stride = kBlockSize * token;
    kv.head_stride = int64_t{kBlockSize} * shape.head_dim;
    kv.token_stride = shape.head_dim;
    scratch_.resize(paged_attention_scratch_bytes(kv, shape.num_q_heads, rows, threads));
    args_.num_q_heads = shape.num_q_heads;
    args_.q = make_view<const float>(q_.data(), num_toks, width);
    args_.out = make_view(out_.data(), num_toks, width);
    args_.block_table = {table_.data(), begins_.data(), static_cast<int32_t>(table_.size())};
    args_.idx_mapping = make_view<const int32_t>(rows_.data(), int64_t{rows});
    args_.query_start_loc = make_view<const int32_t>(starts_.data(), int64_t{rows} + 1);
    args_.seq_lens = make_view<const int32_t>(lens_.data(), int64_t{rows});
    args_.scratch = make_view(scratch_.data(), static_cast<int64_t>(scratch_.size()));
    args_.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
    args_.num_decode_rows = num_queries == 1 ? rows : 0;
  }

  void run_layer() {
    args_.kv.k = reinterpret_cast<std::byte*>(k_.data() + next_ * layer_);
    args_.kv.v = reinterpret_cast<std::byte*>(v_.data() + next_ * layer_);
    next_ = (next_ + 1) % num_layers_;
    paged_attention(*stream_, args_);
  }

  [[nodiscard]] double kv_bytes() const { return kv_bytes_; }
  [[nodiscard]] double flops() const { return flops_; }

 private:
  static constexpr int64_t kCacheElements = int64_t{48} << 20;  // of keys, and as many of values

  std::unique_ptr<cpu::CpuDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<uint16_t> k_, v_;
  std::vector<int32_t> table_, begins_, lens_, rows_, starts_;
  std::vector<float> q_, out_;
  std::vector<std::byte> scratch_;
  PagedAttentionArgs args_;
  int64_t layer_ = 0;
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
