// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention.h"

#include "tests/kernels/cpu_harness.h"
#include "tests/support/attention_case.h"
#include "tests/support/equal_tables.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::random_floats;

// Keys, values and queries of whole requests. A batch is a set of query ranges over them.
struct World {
  int32_t hq = 6;
  int32_t hkv = 2;
  int32_t dim_k = 64;
  int32_t dim_v = 64;
  DType dtype = DType::kF32;
  std::vector<int32_t> lengths{1, 17, 64, 130, 200};
  std::vector<std::vector<float>> q;  // [length, hq, dim_k]
  std::vector<std::vector<float>> k;  // [length, hkv, dim_k]
  std::vector<std::vector<float>> v;  // [length, hkv, dim_v]

  void fill() {
    for (size_t r = 0; r < lengths.size(); ++r) {
      const auto n = static_cast<size_t>(lengths[r]);
      const auto seed = static_cast<uint32_t>(100 * r);
      q.push_back(random_floats(n * hq * dim_k, seed + 1));
      k.push_back(random_floats(n * hkv * dim_k, seed + 2));
      v.push_back(random_floats(n * hkv * dim_v, seed + 3));
      if (dtype == DType::kBF16) {  // rounded to the cache's dtype
        // Queries too: the AVX-512 BF16 kernels round them.
        for (auto* values : {&q.back(), &k.back(), &v.back()}) {
          for (float& x : *values) {
            x = bf16_to_f32(f32_to_bf16(x));
          }
        }
      }
    }
  }
};

// Queries [begin, end) of a request. Its KV length in this step is `end`.
struct Piece {
  int32_t request;  // -1: a padding row
  int32_t begin;
  int32_t end;
};

struct Options {
  int32_t block_size = 16;
  int32_t threads = 2;
  int32_t window = 0;
  float soft_cap = 0.0F;
  bool causal = true;
  bool nhd = false;
  bool apart = false;      // keys and values in two separate halves of the cache
  int32_t num_layers = 1;  // layers interleaved within a block; the case reads the last one
  std::vector<float> sinks;
};

struct Outcome {
  std::vector<float> out;  // [T, hq * dim_v]
  std::vector<float> lse;  // [T, hq]
};

// Lays out a batch like the runner: a paged cache with shuffled blocks, rows indirect through idx_mapping, q as a
// column slice of wider rows.
class Batch {
 public:
  Batch(const World& world, std::vector<Piece> pieces, Options options)
      : w_(world), pieces_(std::move(pieces)), o_(std::move(options)) {
    build_tables();
    build_cache();
    build_queries();
  }

  Outcome run() {
    CpuHarness cpu(o_.threads);
    PagedAttentionArgs a;
    a.kv = {cache_.data() + keys_at_ * element(),
            cache_.data() + values_at_ * element(),
            w_.dtype,
            o_.block_size,
            w_.hkv,
            w_.dim_k,
            w_.dim_v,
            block_stride_,
            head_stride_,
            token_stride_};
    a.num_q_heads = w_.hq;
    std::vector<std::byte> scratch(paged_attention_scratch_bytes(
        a.kv, w_.hq, static_cast<int32_t>(pieces_.size()), o_.threads));
    Outcome result;
    result.out.assign(static_cast<size_t>(tokens_ * w_.hq * w_.dim_v), -5.0F);
    result.lse.assign(static_cast<size_t>(tokens_ * w_.hq), -5.0F);
    const auto rows = static_cast<int64_t>(pieces_.size());
    a.q = make_strided<const float>(q_.data(), tokens_, int64_t{w_.hq} * w_.dim_k, q_stride_);
    a.out = make_view(result.out.data(), tokens_, int64_t{w_.hq} * w_.dim_v);
    a.block_table = {table_.data(), table_begins_.data(), static_cast<int32_t>(table_.size())};
    a.idx_mapping = make_view<const int32_t>(idx_mapping_.data(), rows);
    a.query_start_loc = make_view<const int32_t>(query_start_.data(), rows + 1);
    a.seq_lens = make_view<const int32_t>(seq_lens_.data(), rows);
    if (!o_.sinks.empty()) {
      a.sinks = make_view<const float>(o_.sinks.data(), w_.hq);
    }
    a.lse = make_view(result.lse.data(), tokens_, int64_t{w_.hq});
    a.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
    a.scale = 1.0F / std::sqrt(static_cast<float>(w_.dim_k));
    a.window = o_.window;
    a.soft_cap = o_.soft_cap;
    a.causal = o_.causal;
    paged_attention(*cpu.stream, a);
    return result;
  }

 private:
  void build_tables() {
    int32_t longest = 0;
    int32_t blocks = 1;  // block 0 is the null block
    query_start_.push_back(0);
    for (const Piece& p : pieces_) {
      const bool padding = p.request < 0;
      longest = std::max(longest, p.end);
      blocks += padding ? 0 : (p.end + o_.block_size - 1) / o_.block_size;
      seq_lens_.push_back(padding ? 0 : p.end);
      query_start_.push_back(query_start_.back() + (padding ? 0 : p.end - p.begin));
    }
    tokens_ = query_start_.back();
    max_blocks_ = (longest + o_.block_size - 1) / o_.block_size + 1;
    std::vector<int32_t> free(static_cast<size_t>(blocks - 1));
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), std::mt19937(5));
    num_blocks_ = blocks;
    table_.assign((pieces_.size() + 2) * static_cast<size_t>(max_blocks_), -1);
    table_begins_ = test::equal_begins(static_cast<int64_t>(pieces_.size()) + 2, max_blocks_);
    for (size_t r = 0; r < pieces_.size(); ++r) {
      const auto row = static_cast<int32_t>(pieces_.size() + 1 -
                                            r);  // request rows are in another order than the batch
      idx_mapping_.push_back(pieces_[r].request < 0 ? -1 : row);
      const int32_t first_seen = o_.window > 0 ? std::max(0, pieces_[r].begin - o_.window + 1) : 0;
      for (int32_t b = 0; pieces_[r].request >= 0 && b * o_.block_size < pieces_[r].end; ++b) {
        const int32_t block = free.back();
        free.pop_back();
        // The scheduler frees blocks that a sliding window has left behind.
        table_[static_cast<size_t>(row * max_blocks_ + b)] =
            (b + 1) * o_.block_size <= first_seen ? -1 : block;
      }
    }
  }

  void build_cache() {
    const int64_t dim = std::max(w_.dim_k, w_.dim_v);
    token_stride_ = o_.nhd ? w_.hkv * dim : dim;
    head_stride_ = o_.nhd ? dim : o_.block_size * dim;
    const int64_t own = int64_t{o_.block_size} * w_.hkv * dim;
    const int64_t piece = o_.apart ? own : 2 * own;
    block_stride_ = o_.num_layers * piece;
    keys_at_ = (o_.num_layers - 1) * piece;
    values_at_ = keys_at_ + (o_.apart ? num_blocks_ * block_stride_ : own);
    const int64_t elements = num_blocks_ * o_.num_layers * 2 * own;
    cache_.assign(static_cast<size_t>(elements * element()),
                  std::byte{0xff});  // unwritten slots are NaN
    for (size_t r = 0; r < pieces_.size(); ++r) {
      for (int32_t t = 0; pieces_[r].request >= 0 && t < pieces_[r].end; ++t) {
        const int32_t block =
            table_[static_cast<size_t>(idx_mapping_[r] * max_blocks_ + t / o_.block_size)];
        for (int32_t h = 0; block >= 0 && h < w_.hkv; ++h) {
          const int64_t at =
              block * block_stride_ + h * head_stride_ + t % o_.block_size * token_stride_;
          const auto request = static_cast<size_t>(pieces_[r].request);
          write(keys_at_ + at,
                &w_.k[request][static_cast<size_t>((t * w_.hkv + h) * w_.dim_k)],
                w_.dim_k);
          write(values_at_ + at,
                &w_.v[request][static_cast<size_t>((t * w_.hkv + h) * w_.dim_v)],
                w_.dim_v);
        }
      }
    }
  }

  [[nodiscard]] int64_t element() const { return static_cast<int64_t>(dtype_bytes(w_.dtype)); }

  void write(int64_t at, const float* x, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
      if (w_.dtype == DType::kBF16) {
        reinterpret_cast<uint16_t*>(cache_.data())[at + i] = f32_to_bf16(x[i]);
      } else {
        reinterpret_cast<float*>(cache_.data())[at + i] = x[i];
      }
    }
  }

  void build_queries() {
    q_stride_ = int64_t{w_.hq + 2 * w_.hkv} * w_.dim_k;
    q_.assign(static_cast<size_t>(tokens_ * q_stride_), std::numeric_limits<float>::quiet_NaN());
    for (size_t r = 0; r < pieces_.size(); ++r) {
      for (int32_t i = 0; pieces_[r].request >= 0 && i < pieces_[r].end - pieces_[r].begin; ++i) {
        const int64_t width = int64_t{w_.hq} * w_.dim_k;
        std::copy_n(
            w_.q[static_cast<size_t>(pieces_[r].request)].begin() + (pieces_[r].begin + i) * width,
            width,
            q_.begin() + (query_start_[r] + i) * q_stride_);
      }
    }
  }

  const World& w_;
  std::vector<Piece> pieces_;
  Options o_;
  std::vector<int32_t> seq_lens_, query_start_, idx_mapping_, table_, table_begins_;
  std::vector<std::byte> cache_;
  std::vector<float> q_;
  int64_t tokens_ = 0, q_stride_ = 0, block_stride_ = 0, head_stride_ = 0, token_stride_ = 0;
  int64_t keys_at_ = 0, values_at_ = 0;  // in elements
  int32_t max_blocks_ = 0, num_blocks_ = 0;
};

// Attention of one query and head in double.
void attention_reference(const World& w,
                         const Options& o,
                         const Piece& p,
                         int32_t position,
                         int32_t head,
                         std::vector<double>& out,
                         double& lse) {
  const auto r = static_cast<size_t>(p.request);
  const int32_t kv_head = head / (w.hq / w.hkv);
  const int32_t begin = o.window > 0 ? std::max(0, position - o.window + 1) : 0;
  const int32_t ahead = o.causal ? 1 : o.window > 0 ? o.window : p.end;
  const int32_t end = std::min(position + ahead, p.end);
  std::vector<double> scores;
  double top = o.sinks.empty() ? -1e300 : static_cast<double>(o.sinks[static_cast<size_t>(head)]);
  for (int32_t j = begin; j < end; ++j) {
    double s = 0.0;
    for (int32_t d = 0; d < w.dim_k; ++d) {
      s +=
          static_cast<double>(w.q[r][static_cast<size_t>((position * w.hq + head) * w.dim_k + d)]) *
          w.k[r][static_cast<size_t>((j * w.hkv + kv_head) * w.dim_k + d)];
    }
    s /= std::sqrt(static_cast<double>(w.dim_k));
    if (o.soft_cap > 0.0F) {
      s = o.soft_cap * std::tanh(s / o.soft_cap);
    }
    scores.push_back(s);
    top = std::max(top, s);
  }
  double sum = o.sinks.empty() ? 0.0 : std::exp(o.sinks[static_cast<size_t>(head)] - top);
  out.assign(static_cast<size_t>(w.dim_v), 0.0);
  for (int32_t j = begin; j < end; ++j) {
    const double e = std::exp(scores[static_cast<size_t>(j - begin)] - top);
    sum += e;
    for (int32_t d = 0; d < w.dim_v; ++d) {
      out[static_cast<size_t>(d)] +=
          e * w.v[r][static_cast<size_t>((j * w.hkv + kv_head) * w.dim_v + d)];
    }
  }
  for (double& x : out) {
    x /= sum;
  }
  lse = top + std::log(sum);
}

// `only`: pieces of other requests are not compared, -1: all are.
void expect_reference(const World& w,
                      const Options& o,
                      const std::vector<Piece>& pieces,
                      const Outcome& got,
                      int32_t only = -1) {
  // The kernel rounds probabilities to bf16, with a relative error of at most 1 / 512.
  const bool rounds = w.dtype == DType::kBF16 && cpu_isa() >= CpuIsa::kAvx512Bf16;
  const double tolerance = rounds ? 4e-3 : 5e-6;
  int64_t token = 0;
  std::vector<double> expected;
  double lse = 0.0;
  for (const Piece& p : pieces) {
    for (int32_t position = p.begin; p.request >= 0 && position < p.end; ++position, ++token) {
      for (int32_t h = 0; h < w.hq && (only < 0 || p.request == only); ++h) {
        attention_reference(w, o, p, position, h, expected, lse);
        const int64_t at = (token * w.hq + h) * w.dim_v;
        for (int32_t d = 0; d < w.dim_v; ++d) {
          ASSERT_NEAR(
              got.out[static_cast<size_t>(at + d)], expected[static_cast<size_t>(d)], tolerance)
              << "request " << p.request << " position " << position << " head " << h << " dim "
              << d;
        }
        ASSERT_NEAR(got.lse[static_cast<size_t>(token * w.hq + h)], lse, 1e-5);
      }
    }
  }
}

// The cases of the CUDA kernels (tests/cuda/attention_cuda_test.cpp) on a CPU.
TEST(PagedAttention, CasesAgreeWithDouble) {
  using testing::AttentionCase;
  CpuHarness cpu(2);
  AttentionCase plain{.q_heads = 6, .kv_heads = 2, .dim = 64};
  plain.rows = {{1, 130}, {3, 3}, {0, 0}, {1, 17}, {40, 90}};
  AttentionCase narrow = plain;
  narrow.window = 20;
  narrow.soft_cap = 10.0F;
  narrow.sinks = true;
  narrow.nhd = true;
  narrow.num_layers = 2;
  AttentionCase f8 = plain;
  f8.dtype = DType::kF8E4M3;
  AttentionCase narrow_f8 = narrow;
  narrow_f8.dtype = DType::kF8E5M2;
  narrow_f8.dim = 80;
  for (const AttentionCase& c : {plain, narrow, f8, narrow_f8}) {
    SCOPED_TRACE(c.text());
    const testing::AttentionBatch batch(c, 1);
    const testing::AttentionBatch::Result expected = batch.reference();
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      testing::HostMemory memory;
      PagedAttentionArgs args = batch.args(memory);
      std::byte* cache = memory.put(batch.stored_cache());
      args.kv.k = cache + batch.keys_at * batch.element_bytes();
      args.kv.v = cache + batch.values_at * batch.element_bytes();
      args.kv.k_scales = batch.k_scales.data();
      args.kv.v_scales = batch.v_scales.data();
      args.q = make_strided<const float>(
          batch.q.data(), batch.num_toks(), batch.q_cols(), batch.q_stride);
      if (c.sinks) {
        args.sinks = make_view<const float>(batch.sink_values.data(), int64_t{c.q_heads});
      }
      std::vector<float> out(expected.out.size(), -5.0F);
      std::vector<float> lse(expected.lse.size(), -5.0F);
      args.out = make_view(out.data(), batch.num_toks(), batch.q_cols());
      args.lse = make_view(lse.data(), batch.num_toks(), int64_t{c.q_heads});
      std::vector<std::byte> scratch(paged_attention_scratch_bytes(
          args.kv, c.q_heads, static_cast<int32_t>(batch.num_rows()), 2));
      args.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
      paged_attention(*cpu.stream, args);
      // The AVX-512 BF16 kernel rounds probabilities to bf16, with a relative error of at most 1 / 512.
      const double limit = isa >= CpuIsa::kAvx512Bf16 ? 8e-3 : 1e-5;
      EXPECT_EQ(testing::first_mismatch(out, expected.out, {0, limit}), -1) << cpu_isa_name(isa);
      EXPECT_EQ(testing::first_mismatch(lse, expected.lse, {0, 3e-5}), -1) << cpu_isa_name(isa);
    }
  }
}

const std::vector<Piece> kMixed{
    {0, 0, 1}, {3, 129, 130}, {-1, 0, 0}, {1, 5, 17}, {4, 0, 200}, {2, 63, 64}, {-1, 0, 0}};

TEST(PagedAttention, MixedBatchAgreesWithDouble) {
  World w;
  w.fill();
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    expect_reference(w, {}, kMixed, Batch(w, kMixed, {}).run());
  }
}

TEST(PagedAttention, Bf16CacheAndTokenMajorLayout) {
  World w;
  w.dtype = DType::kBF16;
  w.fill();
  Options o;
  o.nhd = true;
  o.block_size = 32;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    expect_reference(w, o, kMixed, Batch(w, kMixed, o).run());
  }
}

// Every cache layout: [head][token] or [token][head], keys and values separate or adjacent, one layer or several.
TEST(PagedAttention, BitEqualForEveryLayout) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World w;
    w.dtype = dtype;
    w.fill();
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      const Outcome expected = Batch(w, kMixed, {}).run();
      for (const bool nhd : {false, true}) {
        for (const bool apart : {false, true}) {
          for (const int32_t num_layers : {1, 3}) {
            Options o;
            o.nhd = nhd;
            o.apart = apart;
            o.num_layers = num_layers;
            const Outcome got = Batch(w, kMixed, o).run();
            ASSERT_EQ(got.out, expected.out) << nhd << apart << num_layers;
            ASSERT_EQ(got.lse, expected.lse) << nhd << apart << num_layers;
          }
        }
      }
    }
  }
}

class PagedAttentionOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Caches,
                         PagedAttentionOf,
                         ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& cache) { return std::string(dtype_name(cache.param)); });

TEST_P(PagedAttentionOf, WindowSinksSoftCapAndBidirectional) {
  World w;
  w.dtype = GetParam();
  w.fill();
  Options window;
  window.window = 50;
  Options sinks;
  sinks.sinks = {0.5F, -3.0F, 4.0F, 0.0F, 1.0F, 9.0F};
  sinks.window = 128;
  Options cap;
  cap.soft_cap = 2.0F;
  Options whole;
  whole.causal = false;
  const std::vector<Piece> whole_pieces{{1, 0, 17}, {3, 0, 130}};
  Options near = whole;
  near.window = 9;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    expect_reference(w, window, kMixed, Batch(w, kMixed, window).run());
    expect_reference(w, sinks, kMixed, Batch(w, kMixed, sinks).run());
    expect_reference(w, cap, kMixed, Batch(w, kMixed, cap).run());
    expect_reference(w, whole, whole_pieces, Batch(w, whole_pieces, whole).run());
    expect_reference(w, near, whole_pieces, Batch(w, whole_pieces, near).run());
  }
}

TEST_P(PagedAttentionOf, HeadDimensionsAndGroups) {
  struct Shape {
    int32_t hq, hkv, dim_k, dim_v;
  };
  for (const Shape s : {Shape{2, 2, 80, 80},
                        Shape{4, 1, 96, 96},
                        Shape{8, 2, 128, 128},
                        Shape{5, 1, 256, 256},
                        Shape{3, 1, 512, 512},
                        Shape{2, 1, 8, 8},
                        Shape{7, 1, 72, 40},
                        Shape{9, 1, 32, 96},
                        Shape{36, 1, 24, 24}}) {
    World w;
    w.dtype = GetParam();
    w.hq = s.hq;
    w.hkv = s.hkv;
    w.dim_k = s.dim_k;
    w.dim_v = s.dim_v;
    w.lengths = {70, 33};
    w.fill();
    const std::vector<Piece> pieces{{0, 60, 70}, {1, 32, 33}};
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      expect_reference(w, {}, pieces, Batch(w, pieces, {}).run());
    }
  }
}

// The rows of `whole` that also occur in `part`, which was split differently, are equal bit for bit.
void expect_same_bits(const World& w,
                      const std::vector<Piece>& pieces,
                      const Outcome& part,
                      const Outcome& whole) {
  size_t token = 0;
  const auto width = static_cast<size_t>(w.hq * w.dim_v);
  for (const Piece& p : pieces) {
    size_t start = 0;
    for (int32_t r = 0; r < p.request; ++r) {
      start += static_cast<size_t>(w.lengths[static_cast<size_t>(r)]);
    }
    for (int32_t position = p.begin; position < p.end; ++position, ++token) {
      for (size_t i = 0; i < width; ++i) {
        ASSERT_EQ(part.out[token * width + i],
                  whole.out[(start + static_cast<size_t>(position)) * width + i])
            << "request " << p.request << " position " << position;
      }
    }
  }
}

TEST(PagedAttention, BitEqualForAnyBatchChunkBlockSizeAndThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int32_t window : {0, 70}) {
      World w;
      w.dtype = dtype;
      w.fill();
      Options base;
      base.window = window;
      std::vector<Piece> whole_pieces;
      for (int32_t r = 0; r < 5; ++r) {
        whole_pieces.push_back({r, 0, w.lengths[static_cast<size_t>(r)]});
      }
      for (const CpuIsa isa : testing::runnable_isas()) {
        const ScopedCpuIsa scope(isa);
        const Outcome whole = Batch(w, whole_pieces, base).run();
        for (const int32_t block_size : {4, 16, 64, 128}) {
          Options o = base;
          o.block_size = block_size;
          o.threads = block_size == 16 ? 1 : 2;
          for (const auto& pieces :
               std::vector<std::vector<Piece>>{{{4, 199, 200}},
                                               {{3, 129, 130}, {4, 0, 100}, {1, 16, 17}},
                                               {{4, 100, 200}, {3, 3, 71}, {2, 0, 64}, {0, 0, 1}},
                                               {{4, 37, 38}, {3, 64, 128}}}) {
            expect_same_bits(w, pieces, Batch(w, pieces, o).run(), whole);
          }
        }
      }
    }
  }
}

// Long rows with few queries are split among threads. The split points do not depend on the number of threads.
TEST(PagedAttention, LongRowsAreCutWithoutATrace) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World w;
    w.dtype = dtype;
    w.hq = 3;
    w.hkv = 1;
    w.lengths = {4700, 300};
    w.fill();
    Options plain;
    Options odd;
    odd.window = 4500;
    odd.sinks = {0.5F, -3.0F, 4.0F};
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      for (Options o : {plain, odd}) {
        const std::vector<Piece> chunk{{0, 4676, 4700}};
        o.threads = 1;
        const Outcome whole = Batch(w, chunk, o).run();
        expect_reference(w, o, chunk, whole);
        for (const int32_t threads : {2, 5}) {
          o.threads = threads;
          for (const auto& pieces : std::vector<std::vector<Piece>>{
                   {{0, 4699, 4700}},
                   {{1, 299, 300}, {0, 4690, 4697}, {-1, 0, 0}, {1, 100, 101}},
                   {{0, 4677, 4678}, {0, 4695, 4696}}}) {
            const Outcome cut = Batch(w, pieces, o).run();
            size_t token = 0;
            for (const Piece& p : pieces) {
              for (int32_t at = p.begin; at < p.end; ++at, ++token) {
                for (size_t i = 0; p.request == 0 && i < 192; ++i) {
                  ASSERT_EQ(cut.out[token * 192 + i],
                            whole.out[static_cast<size_t>(at - 4676) * 192 + i])
                      << "position " << at << " of " << threads << " threads";
                }
              }
            }
            expect_reference(w, o, pieces, cut, 1);
          }
        }
      }
    }
  }
}

TEST(PagedAttention, PaddingRowsTouchNothing) {
  World w;
  w.fill();
  const Outcome got = Batch(w, {{-1, 0, 0}, {-1, 0, 0}}, {}).run();
  EXPECT_TRUE(got.out.empty());
  // Tokens after the last row: a batch padded to more tokens than its rows have.
  EXPECT_TRUE(Batch(w, {}, {}).run().out.empty());
}

}  // namespace
}  // namespace warprow
