// SPDX-License-Identifier: Apache-2.0
// FlashInfer's kernels as the backend of that name runs them: 32 query heads and 8 KV heads of 128, over shuffled
// blocks of 16 and 128 tokens. A graph holds one call per layer, with more layers than fit in L2, and a small kernel
// before each call, as in a step. The plan, which is made once per step, is timed separately. `splits` as first
// argument times decode with other numbers of KV splits per row; `fa2` times the FA2 template with blocks of 16.
#include "base/dtype.h"
#include "kernels/attention/flashinfer/params.h"
#include "tests/support/equal_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/kernels/cuda_timing.h"

namespace warprow::cuda {
namespace {

constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kDim = 128;

struct Row {
  int32_t queries;
  int32_t len;
};

struct Case {
  std::string name;
  std::vector<Row> rows;
};

std::vector<Row> repeat(int32_t n, int32_t queries, int32_t len) {
  return {static_cast<size_t>(n), {queries, len}};
}

std::vector<Row> operator+(std::vector<Row> a, const std::vector<Row>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Bench {
 public:
  Bench(const Case& c, int32_t block_size, int32_t num_sms, bool fa2) : case_(c) {
    std::vector<int32_t> starts = {0};
    std::vector<int32_t> lens;
    int32_t num_blocks = 0;
    int32_t max_blocks = 1;
    for (const Row& row : c.rows) {
      starts.push_back(starts.back() + row.queries);
      lens.push_back(row.len);
      const int32_t blocks = (row.len + block_size - 1) / block_size;
      num_blocks += blocks;
      max_blocks = std::max(max_blocks, blocks);
      args_.num_decode_rows += row.queries == 1 ? 1 : 0;
      kv_bytes_ += 4.0 * row.len * kKvHeads * kDim;
      flops_ += 4.0 * row.queries * (row.len - (row.queries - 1) / 2.0) * kHeads * kDim;
    }
    const auto num_rows = static_cast<int64_t>(c.rows.size());
    std::vector<int32_t> ids(static_cast<size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    std::vector<int32_t> table(static_cast<size_t>(num_rows * max_blocks));
    auto next = ids.begin();
    for (int64_t r = 0; r < num_rows; ++r) {
      const int32_t blocks = (c.rows[r].len + block_size - 1) / block_size;
      std::copy(next, next + blocks, table.begin() + r * max_blocks);
      next += blocks;
    }
    std::vector<int32_t> idx(c.rows.size());
    std::iota(idx.begin(), idx.end(), 0);

    KvLayerView& kv = args_.kv;
    kv.dtype = DType::kBF16;
    kv.block_size = block_size;
    kv.num_kv_heads = kKvHeads;
    kv.head_dim_k = kv.head_dim_v = kDim;
    kv.token_stride = kDim;
    kv.head_stride = int64_t{block_size} * kDim;
    kv.block_stride = 2 * kKvHeads * kv.head_stride;
    layer_bytes_ = static_cast<size_t>(num_blocks * kv.block_stride) * 2;
    num_layers_ = copies_beyond_l2(layer_bytes_);
    const int64_t toks = starts.back();
    args_.q =
        ActView(DType::kBF16,
                buffers_.normal_bf16(static_cast<size_t>(toks) * (kHeads + 2 * kKvHeads) * kDim),
                toks,
                kHeads * kDim,
                (kHeads + 2 * kKvHeads) * kDim);
    args_.out = ActView(DType::kBF16,
                        buffers_.normal_bf16(static_cast<size_t>(toks) * kHeads * kDim),
                        toks,
                        kHeads * kDim);
    cache_ = reinterpret_cast<std::byte*>(
        buffers_.normal_bf16(layer_bytes_ / 2 * static_cast<size_t>(num_layers_)));
    args_.block_table = {buffers_.upload(table),
                         buffers_.upload(test::equal_begins(num_rows, max_blocks)),
                         static_cast<int32_t>(table.size())};
    args_.idx_mapping = make_view<const int32_t>(buffers_.upload(idx), num_rows);
    args_.query_start_loc = make_view<const int32_t>(buffers_.upload(starts), num_rows + 1);
    args_.seq_lens = make_view<const int32_t>(buffers_.upload(lens), num_rows);
    args_.num_q_heads = kHeads;
    args_.scale = 1.0F / std::sqrt(static_cast<float>(kDim));
    args_.limits = {kv,
                    kHeads,
                    static_cast<int32_t>(num_rows),
                    static_cast<int32_t>(toks),
                    max_blocks,
                    static_cast<int64_t>(table.size()),
                    num_sms,
                    fa2};
    // Partial results for the largest number of splits that is tried.
    const size_t bytes = flashinfer_scratch_bytes(args_.limits) +
                         static_cast<size_t>(num_rows) * kMaxSplits * kHeads * (kDim * 2 + 8);
    args_.scratch = make_view(buffers_.allocate<std::byte>(bytes), static_cast<int64_t>(bytes));
  }

  void run(Stream& stream) {
    flashinfer_plan(stream, args_);
    const double plan = graph_us(stream, 16, [&](int) { flashinfer_plan(stream, args_); }, 3);
    report(graph_us(
        stream,
        calls(),
        [&](int i) {
          point_at(i);
          launch_gap(stream);
          flashinfer_forward(stream, args_);
        },
        7));
    std::printf("  plan %4.1f us\n", plan);
    std::fflush(stdout);
  }

  void run_splits(Stream& stream) {
    flashinfer_plan(stream, args_);
    FlashInferScratch scratch;
    flashinfer_scratch_layout(args_.limits, args_.scratch.data, &scratch);
    const XqaSplits chosen = xqa_splits(args_.num_decode_rows, args_.limits);
    std::printf("%-26s block %3d  us with at most n splits of at least m tiles (chosen %d, %d)\n",
                case_.name.c_str(),
                args_.kv.block_size,
                chosen.most,
                chosen.min_tiles);
    for (const int32_t most : {1, 2, 4, 8, 16, kMaxSplits}) {
      std::printf("  %2d:", most);
      for (int32_t min_tiles = 1; min_tiles <= 32; min_tiles *= 2) {
        const double us = graph_us(
            stream,
            calls(),
            [&](int i) {
              point_at(i);
              launch_gap(stream);
              xqa_decode(stream, args_, scratch.tables, scratch.partials, {most, min_tiles});
            },
            5);
        std::printf("  %2d: %6.1f", min_tiles, us);
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }

 private:
  static constexpr int32_t kMaxSplits = 32;

  [[nodiscard]] int calls() const { return std::max(num_layers_, 8); }
  void point_at(int call) {
    args_.kv.k = cache_ + static_cast<size_t>(call % num_layers_) * layer_bytes_;
    args_.kv.v = args_.kv.k + args_.kv.head_stride * kKvHeads * 2;
  }
  void report(double us) const {
    const double rate = kv_bytes_ / us * 1e6;
    const double flops = flops_ / us * 1e6;
    std::printf("%-26s block %3d  %8.1f us  %5.2f TB/s (%3.0f %%)  %5.0f TFLOP/s (%3.0f %%)",
                case_.name.c_str(),
                args_.kv.block_size,
                us,
                rate * 1e-12,
                100 * rate / kReadBytesPerSecond,
                flops * 1e-12,
                100 * flops / kBf16FlopsPerSecond);
  }

  Case case_;
  FlashInferArgs args_;
  std::byte* cache_ = nullptr;
  size_t layer_bytes_ = 0;
  int num_layers_ = 1;
  double kv_bytes_ = 0;
  double flops_ = 0;
  BenchBuffers buffers_;
};

std::vector<Case> decodes() {
  std::vector<Case> cases;
  for (const auto& [n, len] : std::vector<std::pair<int32_t, int32_t>>{{1, 1024},
                                                                       {1, 8192},
                                                                       {1, 32768},
                                                                       {8, 2048},
                                                                       {32, 2048},
                                                                       {32, 256},
                                                                       {64, 256},
                                                                       {64, 4096},
                                                                       {128, 256},
                                                                       {128, 1152},
                                                                       {256, 256},
                                                                       {256, 1024}}) {
    cases.push_back({"decode " + std::to_string(n) + "x" + std::to_string(len), repeat(n, 1, len)});
  }
  cases.push_back({"decode 63x512 + 1x32768", repeat(63, 1, 512) + repeat(1, 1, 32768)});
  return cases;
}

std::vector<Case> extends() {
  return {{"prefill 1x1024", repeat(1, 1024, 1024)},
          {"prefill 1x8192", repeat(1, 8192, 8192)},
          {"prefill 8x1024", repeat(8, 1024, 1024)},
          {"prefill 16x1024", repeat(16, 1024, 1024)},
          {"prefill 4x4096", repeat(4, 4096, 4096)},
          {"2048 on 16384", repeat(1, 2048, 16384)},
          {"512 on 4096", repeat(1, 512, 4096)},
          {"64 dec@4096 + 2048@4096", repeat(64, 1, 4096) + repeat(1, 2048, 4096)},
          {"128 dec@2048 + 512@512", repeat(128, 1, 2048) + repeat(1, 512, 512)}};
}

}  // namespace
}  // namespace warprow::cuda

int main(int argc, char** argv) {
  using namespace warprow::cuda;
  const BenchDevice gpu;
  const bool splits = argc > 1 && std::strcmp(argv[1], "splits") == 0;
  const bool fa2 = argc > 1 && std::strcmp(argv[1], "fa2") == 0;
  std::vector<Case> cases = decodes();
  if (!splits) {
    const std::vector<Case> more = extends();
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (const Case& c : cases) {
    for (const int32_t block_size :
         splits || fa2 ? std::vector<int32_t>{16} : std::vector<int32_t>{16, 128}) {
      Bench bench(c, block_size, gpu.device->facts().num_sms, fa2);
      splits ? bench.run_splits(*gpu.stream) : bench.run(*gpu.stream);
    }
  }
  return 0;
}
