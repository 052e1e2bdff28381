// SPDX-License-Identifier: Apache-2.0
// The native attention kernels at the shapes of Qwen3 and SmolLM2, over shuffled pages of 16 tokens. A graph holds one
// call per layer, with more layers than fit in L2, and a small kernel before each call, as in a step. The schedule,
// which is computed once per step, is timed separately. `modes` as an argument compares back ends instead: Hopper's
// default, and both that have a batch-invariant mode.
#include "attention/flashinfer.h"
#include "attention/native.h"
#include "attention/phased.h"
#include "kernels/attention/native/scheduled_attention.h"
#include "tests/support/attention_case.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/kernels/cuda_timing.h"

namespace warprow::cuda {
namespace {

using Row = testing::AttentionRow;

struct Case : testing::AttentionCase {
  Case(std::string of, int32_t queries, int32_t keys, int32_t width, std::vector<Row> all)
      : name(std::move(of)) {
    q_heads = queries;
    kv_heads = keys;
    dim = width;
    rows = std::move(all);
  }
  std::string name;
};

std::vector<Row> repeat(int32_t n, int32_t queries, int32_t len) {
  return {size_t(n), {queries, len}};
}

struct Options {
  int32_t block_size = 16;
  bool nhd = false;
  bool settled = true;
  bool shuffled = true;
  bool f8 = false;         // a cache of e4m3
  int layers = 0;          // 0: enough layers to exceed L2
  int32_t decode_len = 1;  // rows with more tokens take the prefill kernels
};

// The device buffers of a case.
class Bench {
 public:
  Bench(const Case& c, const Options& options) : case_(c) {
    case_.block_size = options.block_size;
    case_.nhd = options.nhd;
    case_.shuffled = options.shuffled;
    case_.decode_len = options.decode_len;
    case_.dtype = options.f8 ? DType::kF8E4M3 : DType::kBF16;
    case_.num_decode_rows =
        static_cast<int32_t>(std::count_if(c.rows.begin(), c.rows.end(), [&](const Row& row) {
          return row.queries <= options.decode_len;
        }));
    std::mt19937 rng(1);
    const testing::AttentionLayout layout(case_, rng);
    static_cast<PagedAttentionArgs&>(args_) = layout.args(buffers_);
    layer_elements_ = static_cast<size_t>(layout.cache_elements);
    values_at_ = static_cast<size_t>(layout.values_at);
    const size_t layer_bytes = layer_elements_ * dtype_bytes(case_.dtype);
    num_layers_ = options.layers > 0 ? options.layers : copies_beyond_l2(layer_bytes);
    const int64_t toks = layout.num_toks();
    const int64_t out = layout.q_cols();
    // Two e4m3 elements have the bits of one bf16 number. One of them may be NaN, which takes no other time.
    cache_ = reinterpret_cast<std::byte*>(buffers_.normal_bf16(layer_bytes * num_layers_ / 2));
    if (options.f8) {
      args_.kv.k_scales = args_.kv.v_scales =
          buffers_.upload(std::vector<float>(static_cast<size_t>(c.kv_heads), 1.0F));
    }
    q_ = buffers_.normal_bf16(toks * layout.q_stride);
    out_ = buffers_.normal_bf16(toks * out);
    args_.q = ActView(DType::kBF16, q_, toks, out, layout.q_stride);
    args_.out = ActView(DType::kBF16, out_, toks, out);
    args_.settled = options.settled;
    const size_t scratch = native_attention_scratch_bytes(
        args_.kv, c.q_heads, static_cast<int32_t>(layout.num_rows()), options.decode_len);
    args_.scratch = make_view(buffers_.allocate<std::byte>(scratch), static_cast<int64_t>(scratch));
  }

  void run(Stream& stream) {
    const double plan = graph_us(stream, 16, [&](int) { attention_schedule(stream, args_); }, 3);
    const int calls = std::max(num_layers_, 8);
    const double us = graph_us(
        stream,
        calls,
        [&](int i) {
          const size_t layer = i % num_layers_;
          args_.kv.k = cache_ + layer * layer_elements_ * dtype_bytes(case_.dtype);
          args_.kv.v = args_.kv.k + values_at_ * dtype_bytes(case_.dtype);
          launch_gap(stream);
          attention_forward(stream, args_);
        },
        7);
    const double rate = case_.kv_bytes() / us * 1e6;
    const double flops = case_.flops() / us * 1e6;
    std::printf(
        "%-26s %2d/%d hd %3d  %8.1f us  %5.2f TB/s (%3.0f %%)  %5.0f TFLOP/s (%3.0f %%)  plan "
        "%4.1f us\n",
        case_.name.c_str(),
        case_.q_heads,
        case_.kv_heads,
        case_.dim,
        us,
        rate * 1e-12,
        100 * rate / kReadBytesPerSecond,
        flops * 1e-12,
        100 * flops / kBf16FlopsPerSecond,
        plan);
    std::fflush(stdout);
  }

 private:
  Case case_;
  ScheduledAttentionArgs args_;
  std::byte* cache_ = nullptr;
  uint16_t* q_ = nullptr;
  uint16_t* out_ = nullptr;
  size_t layer_elements_ = 0;
  size_t values_at_ = 0;  // in elements
  int num_layers_ = 1;
  BenchBuffers buffers_;
};

// One case by several back ends.
class ModeBench {
 public:
  ModeBench(const Case& c, const Options& options) : case_(c) {
    case_.block_size = options.block_size;
    case_.nhd = options.nhd;
    std::mt19937 rng(1);
    const testing::AttentionLayout layout(case_, rng);
    const PagedAttentionArgs args = layout.args(buffers_);
    layer_elements_ = static_cast<size_t>(layout.cache_elements);
    values_at_ = static_cast<size_t>(layout.values_at);
    num_layers_ = options.layers > 0 ? options.layers : copies_beyond_l2(layer_elements_ * 2);
    const int64_t toks = layout.num_toks();
    const int64_t cols = layout.q_cols();
    cache_ = buffers_.normal_bf16(layer_elements_ * num_layers_);
    call_.q = ActView(
        DType::kBF16, buffers_.normal_bf16(toks * layout.q_stride), toks, cols, layout.q_stride);
    call_.out = ActView(DType::kBF16, buffers_.normal_bf16(toks * cols), toks, cols);
    call_.num_heads = case_.q_heads;
    call_.kv = args.kv;
    call_.params.scale = args.scale;
    metadata_.block_table = args.block_table;
    AttentionBatch& batch = metadata_.batch;
    batch.idx_mapping = args.idx_mapping;
    batch.query_start_loc = args.query_start_loc;
    batch.seq_lens = args.seq_lens;
    batch.num_rows = static_cast<int32_t>(layout.num_rows());
    batch.num_toks = static_cast<int32_t>(toks);
    for (const Row& row : case_.rows) {
      const bool decodes = row.queries <= options.decode_len;
      batch.num_decode_rows += decodes ? 1 : 0;
      batch.most_prompt_keys = std::max(batch.most_prompt_keys, decodes ? 0 : row.len);
    }
    batch.num_decode_toks = layout.query_start_loc[static_cast<size_t>(batch.num_decode_rows)];
    limits_.kv = args.kv;
    limits_.num_heads = case_.q_heads;
    limits_.max_num_rows = batch.num_rows;
    limits_.decode_len = options.decode_len;
    limits_.max_num_toks = batch.num_toks;
    limits_.max_num_blocks = layout.max_blocks;
    limits_.num_table_cells = args.block_table.num_cells;
  }

  void run(Device& device, Stream& stream) {
    const double by_default = time(device, stream, *make_phased_attention(), false);
    const double native = time(device, stream, *make_native_attention(), true);
    const double flashinfer = time(device, stream, *make_flashinfer(), true);
    std::printf(
        "%-26s %2d/%d hd %3d  default %8.1f us  batch-invariant: native %8.1f us (%4.2f)  "
        "flashinfer %8.1f us (%4.2f)\n",
        case_.name.c_str(),
        case_.q_heads,
        case_.kv_heads,
        case_.dim,
        by_default,
        native,
        native / by_default,
        flashinfer,
        flashinfer / by_default);
    std::fflush(stdout);
  }

 private:
  double time(Device& device, Stream& stream, AttentionBackend& backend, bool batch_invariant) {
    limits_.batch_invariant = batch_invariant;
    Arena arena = device.make_arena(ArenaPurpose::kWorkspace, size_t{1} << 30);
    backend.allocate(arena, device, limits_);
    const AttentionMetadata metadata = backend.build_metadata(stream, {}, metadata_);
    return graph_us(
        stream,
        std::max(num_layers_, 8),
        [&](int i) {
          const size_t layer = i % num_layers_;
          call_.kv.k = reinterpret_cast<std::byte*>(cache_ + layer * layer_elements_);
          call_.kv.v = call_.kv.k + 2 * values_at_;
          launch_gap(stream);
          backend.forward(stream, call_, metadata);
        },
        7);
  }

  Case case_;
  AttentionCall call_;
  AttentionMetadata metadata_;
  AttentionLimits limits_;
  uint16_t* cache_ = nullptr;
  size_t layer_elements_ = 0;
  size_t values_at_ = 0;  // in elements
  int num_layers_ = 1;
  BenchBuffers buffers_;
};

// Short decode steps of Qwen3-8B and gpt-oss-20b; decode steps, drafts (with decode_len=4) and prompts of Qwen3-0.6B and 8B.
std::vector<Case> mode_cases() {
  std::vector<Case> all;
  for (const auto& [n, len, num_long, long_len] :
       std::vector<std::array<int32_t, 4>>{{127, 200, 1, 8192},
                                           {127, 200, 1, 32'768},
                                           {255, 200, 1, 32'768},
                                           {112, 128, 16, 4096}}) {
    Case uneven{"uneven " + std::to_string(n) + "x" + std::to_string(len) + " + " +
                    std::to_string(num_long) + "x" + std::to_string(long_len),
                32,
                8,
                128,
                repeat(n, 1, len)};
    for (int32_t i = 0; i < num_long; ++i) {
      uneven.rows.push_back({1, long_len});
    }
    all.push_back(uneven);
  }
  for (const int32_t n : {128, 256}) {
    Case spread{"uneven " + std::to_string(n) + "x(32..2047)", 32, 8, 128, {}};
    std::mt19937 rng(5);
    for (int32_t r = 0; r < n; ++r) {
      const auto most = static_cast<uint32_t>(64) << rng() % 6;
      spread.rows.push_back({1, static_cast<int32_t>(most / 2 + rng() % (most / 2))});
    }
    all.push_back(spread);
  }
  for (const int32_t n : {64, 128, 256, 512}) {
    for (const int32_t len : {16, 64, 128, 208, 256, 512, 1024}) {
      all.push_back({"short " + std::to_string(n) + "x" + std::to_string(len),
                     32,
                     8,
                     128,
                     repeat(n, 1, len)});
    }
    for (const int32_t len : {64, 128, 208, 512}) {
      all.push_back(
          {"short " + std::to_string(n) + "x" + std::to_string(len), 64, 8, 64, repeat(n, 1, len)});
    }
  }
  for (const int32_t q_heads : {16, 32}) {
    for (const int32_t len : {512, 2048, 8192}) {
      for (const int32_t n : {1, 8, 32, 128, 256}) {
        all.push_back({"decode " + std::to_string(n) + "x" + std::to_string(len),
                       q_heads,
                       8,
                       128,
                       repeat(n, 1, len)});
      }
    }
    for (const auto& [n, len] : std::vector<std::pair<int32_t, int32_t>>{{32, 2048}, {128, 512}}) {
      all.push_back({"drafts " + std::to_string(n) + "x4 on " + std::to_string(len),
                     q_heads,
                     8,
                     128,
                     repeat(n, 4, len)});
    }
    for (const auto& [n, queries, len] :
         std::vector<std::tuple<int32_t, int32_t, int32_t>>{{1, 128, 128},
                                                            {1, 1024, 1024},
                                                            {16, 1024, 1024},
                                                            {1, 128, 4096},
                                                            {1, 64, 16384},
                                                            {4, 4096, 4096},
                                                            {1, 8192, 8192},
                                                            {1, 512, 4096},
                                                            {1, 2048, 16384}}) {
      all.push_back({"prefill " + std::to_string(n) + "x" + std::to_string(queries) + " on " +
                         std::to_string(len),
                     q_heads,
                     8,
                     128,
                     repeat(n, queries, len)});
    }
  }
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto decode = [&](int32_t n, int32_t len) {
    all.push_back(
        {"decode " + std::to_string(n) + "x" + std::to_string(len), 32, 8, 128, repeat(n, 1, len)});
  };
  for (const auto& [n, len] : std::vector<std::pair<int32_t, int32_t>>{{1, 256},
                                                                       {1, 1024},
                                                                       {1, 2048},
                                                                       {1, 8192},
                                                                       {1, 32768},
                                                                       {8, 256},
                                                                       {8, 2048},
                                                                       {32, 256},
                                                                       {32, 2048},
                                                                       {64, 256},
                                                                       {64, 4096},
                                                                       {128, 256},
                                                                       {128, 1152},
                                                                       {256, 256},
                                                                       {256, 1024},
                                                                       {512, 256}}) {
    decode(n, len);
  }
  Case skew{"decode 63x512 + 1x32768", 32, 8, 128, repeat(63, 1, 512)};
  skew.rows.push_back({1, 32768});
  all.push_back(skew);
  Case ragged{"decode 256x(128..384)", 32, 8, 128, {}};
  std::mt19937 rng(3);
  for (int32_t r = 0; r < 256; ++r) {
    ragged.rows.push_back({1, 128 + static_cast<int32_t>(rng() % 257)});
  }
  all.push_back(ragged);
  for (const int32_t n : {1, 32, 128, 256}) {
    all.push_back({"decode " + std::to_string(n) + "x256", 16, 8, 128, repeat(n, 1, 256)});
  }
  all.push_back({"decode 512x4096", 4, 1, 128, repeat(512, 1, 4096)});
  for (const int32_t n : {1, 32, 256}) {
    all.push_back({"decode " + std::to_string(n) + "x256", 9, 3, 64, repeat(n, 1, 256)});
  }
  for (const int32_t q_heads : {16, 32, 64}) {
    for (const auto& [n, queries, len] :
         std::vector<std::tuple<int32_t, int32_t, int32_t>>{{1, 4, 2048},
                                                            {32, 2, 2048},
                                                            {32, 4, 2048},
                                                            {32, 5, 2048},
                                                            {128, 4, 256},
                                                            {128, 5, 1024}}) {
      all.push_back({"drafts " + std::to_string(n) + "x" + std::to_string(queries) + " on " +
                         std::to_string(len),
                     q_heads,
                     8,
                     128,
                     repeat(n, queries, len)});
    }
  }
  const auto prefill = [&](int32_t n, int32_t queries, int32_t len) {
    all.push_back({"prefill " + std::to_string(n) + "x" + std::to_string(queries) + " on " +
                       std::to_string(len),
                   32,
                   8,
                   128,
                   repeat(n, queries, len)});
  };
  prefill(1, 128, 128);
  prefill(1, 1024, 1024);
  prefill(1, 8192, 8192);
  prefill(8, 1024, 1024);
  prefill(16, 1024, 1024);
  prefill(4, 4096, 4096);
  prefill(1, 2048, 16384);
  prefill(1, 512, 4096);
  Case mixed{"64 decodes@4096 + 2048@4096", 32, 8, 128, repeat(64, 1, 4096)};
  mixed.rows.push_back({2048, 4096});
  all.push_back(mixed);
  mixed = {"128 decodes@2048 + 512@512", 32, 8, 128, repeat(128, 1, 2048)};
  mixed.rows.push_back({512, 512});
  all.push_back(mixed);
  all.push_back({"prefill 16x1024 on 1024", 16, 8, 128, repeat(16, 1024, 1024)});
  all.push_back({"prefill 8x1024 on 1024", 9, 3, 64, repeat(8, 1024, 1024)});
  return all;
}

}  // namespace
}  // namespace warprow::cuda

// Arguments: modes; f8 (a cache of e4m3, not with modes); nhd; unsettled; ordered (pages); layers=N; block=N; decode_len=N. Any other
// argument selects the cases whose names contain it. Without one, all cases run.
int main(int argc, char** argv) {
  warprow::cuda::Options options;
  std::vector<std::string> names;
  bool modes = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "modes") {
      modes = true;
    } else if (argument == "nhd") {
      options.nhd = true;
    } else if (argument == "unsettled") {
      options.settled = false;
    } else if (argument == "f8") {
      options.f8 = true;
    } else if (argument == "ordered") {
      options.shuffled = false;
    } else if (argument.starts_with("layers=")) {
      options.layers = std::atoi(argv[i] + 7);
    } else if (argument.starts_with("block=")) {
      options.block_size = std::atoi(argv[i] + 6);
    } else if (argument.starts_with("decode_len=")) {
      options.decode_len = std::atoi(argv[i] + 11);
    } else {
      names.push_back(argument);
    }
  }
  if (modes && options.f8) {
    std::fprintf(stderr, "modes compares back ends with a bf16 cache, not with f8\n");
    return 1;
  }
  const warprow::cuda::BenchDevice gpu;
  for (const warprow::cuda::Case& c :
       modes ? warprow::cuda::mode_cases() : warprow::cuda::cases()) {
    bool wanted = names.empty();
    for (const std::string& name : names) {
      wanted = wanted || c.name.find(name) != std::string::npos;
    }
    if (wanted && modes) {
      warprow::cuda::ModeBench bench(c, options);
      bench.run(*gpu.device, *gpu.stream);
    } else if (wanted) {
      warprow::cuda::Bench bench(c, options);
      bench.run(*gpu.stream);
    }
  }
  return 0;
}
