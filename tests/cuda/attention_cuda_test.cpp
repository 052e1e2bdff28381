// SPDX-License-Identifier: Apache-2.0
// The native attention kernels against the CPU's, on inputs that bf16 holds exactly.
#include "base/math.h"
#include "device/graph.h"
#include "kernels/attention/native_attention.h"
#include "kernels/attention/paged_attention.h"
#include "tests/cuda/cuda_test.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;

struct Row {
  int32_t queries = 1;
  int32_t len = 1;  // keys, the queries' own included; 0: a row of padding
};

struct Case {
  int32_t q_heads = 8;
  int32_t kv_heads = 2;
  int32_t dim = 128;
  int32_t block_size = 16;
  bool nhd = false;
  bool apart = false;      // keys and values in two halves
  int32_t num_layers = 1;  // side by side in a block; the last one is read
  int32_t window = 0;
  float soft_cap = 0.0F;
  bool sinks = false;
  bool causal = true;
  bool batch_invariant = false;
  int32_t num_decode_rows = 0;
  std::vector<Row> rows;
};

std::vector<Row> decode_rows(int32_t n, int32_t shortest, int32_t longest, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int32_t> len(shortest, longest);
  std::vector<Row> rows;
  for (int32_t r = 0; r < n; ++r) {
    rows.push_back({1, len(rng)});
  }
  return rows;
}

class AttentionCudaTest : public CudaTest {
 protected:
  struct Result {
    std::vector<float> out;
    std::vector<float> lse;
  };

  // Lays a case out in memory: shuffled blocks whose unused places are NaN, rows in another order
  // than the batch, the queries a window of wider rows.
  void build(const Case& c, uint32_t seed) {
    case_ = c;
    rng_.seed(seed);
    lay_out_batch();
    lay_out_cache();
    q_stride_ = (c.q_heads + 2 * c.kv_heads) * c.dim;
    std::normal_distribution<float> normal(0.0F, 1.5F);
    q_.assign(static_cast<size_t>(num_toks() * q_stride_), 0.0F);
    for (float& v : q_) {
      v = normal(rng_);
    }
    q_ = rounded(q_);
    sinks_.clear();
    for (int32_t h = 0; h < c.q_heads; ++h) {
      sinks_.push_back(normal(rng_) * 2.0F);
    }
    device_.q = upload(to_bf16(q_));
    device_.cache = upload(cache_);
    device_.table = upload(table_);
    device_.idx = upload(idx_mapping_);
    device_.starts = upload(query_start_loc_);
    device_.lens = upload(seq_lens_);
    device_.sinks = upload(sinks_);
  }

  void lay_out_batch() {
    const auto n = static_cast<int32_t>(case_.rows.size());
    max_blocks_ = 1;
    query_start_loc_ = {0};
    seq_lens_.clear();
    for (const Row& row : case_.rows) {
      query_start_loc_.push_back(query_start_loc_.back() + row.queries);
      seq_lens_.push_back(row.len);
      max_blocks_ = std::max(max_blocks_, ceil_div(row.len, case_.block_size));
    }
    idx_mapping_.resize(n);
    std::iota(idx_mapping_.begin(), idx_mapping_.end(), 0);
    std::shuffle(idx_mapping_.begin(), idx_mapping_.end(), rng_);
    table_.assign(static_cast<size_t>(n) * max_blocks_, 0);
    int32_t num_blocks = 1;
    for (const Row& row : case_.rows) {
      num_blocks += ceil_div(row.len, case_.block_size);
    }
    std::vector<int32_t> ids(num_blocks - 1);
    std::iota(ids.begin(), ids.end(), 1);
    std::shuffle(ids.begin(), ids.end(), rng_);
    num_blocks_ = num_blocks;
    size_t next = 0;
    for (int32_t r = 0; r < n; ++r) {
      for (int32_t b = 0; b < ceil_div(seq_lens_[r], case_.block_size); ++b) {
        table_[static_cast<size_t>(idx_mapping_[r]) * max_blocks_ + b] = ids[next++];
      }
      if (seq_lens_[r] == 0) {
        idx_mapping_[r] = -1;
      }
    }
  }

  void lay_out_cache() {
    const Case& c = case_;
    kv_ = {};
    kv_.dtype = DType::kBF16;
    kv_.block_size = c.block_size;
    kv_.num_kv_heads = c.kv_heads;
    kv_.head_dim_k = kv_.head_dim_v = c.dim;
    kv_.head_stride = c.nhd ? c.dim : int64_t{c.block_size} * c.dim;
    kv_.token_stride = c.nhd ? int64_t{c.kv_heads} * c.dim : c.dim;
    const int64_t own = int64_t{c.block_size} * c.kv_heads * c.dim;
    const int64_t piece = c.apart ? own : 2 * own;
    kv_.block_stride = c.num_layers * piece;
    keys_at_ = (c.num_layers - 1) * piece;
    values_at_ = keys_at_ + (c.apart ? num_blocks_ * kv_.block_stride : own);
    cache_.assign(static_cast<size_t>(num_blocks_ * c.num_layers * 2 * own), 0xffff);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      for (int32_t t = 0; t < seq_lens_[r]; ++t) {
        const int64_t row = int64_t{idx_mapping_[r]} * max_blocks_;
        const int64_t block = table_[static_cast<size_t>(row + t / c.block_size)];
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          const int64_t at =
              block * kv_.block_stride + h * kv_.head_stride + t % c.block_size * kv_.token_stride;
          for (int32_t d = 0; d < c.dim; ++d) {
            cache_[static_cast<size_t>(at + keys_at_ + d)] = f32_to_bf16(normal(rng_));
            cache_[static_cast<size_t>(at + values_at_ + d)] = f32_to_bf16(normal(rng_));
          }
        }
      }
    }
  }

  [[nodiscard]] int64_t num_toks() const { return query_start_loc_.back(); }

  // Everything but addresses.
  [[nodiscard]] PagedAttentionArgs common() const {
    PagedAttentionArgs args;
    args.kv = kv_;
    args.num_q_heads = case_.q_heads;
    args.window = case_.window;
    args.scale = 1.0F / std::sqrt(static_cast<float>(case_.dim));
    args.soft_cap = case_.soft_cap;
    args.causal = case_.causal;
    args.num_decode_rows = case_.num_decode_rows;
    args.batch_invariant = case_.batch_invariant;
    return args;
  }

  PagedAttentionArgs cuda_args() {
    PagedAttentionArgs args = common();
    const int64_t rows = static_cast<int64_t>(case_.rows.size());
    const int64_t cols = int64_t{case_.q_heads} * case_.dim;
    args.q = ActView(DType::kBF16, device_.q, num_toks(), cols, q_stride_);
    args.out = poisoned_act(DType::kBF16, num_toks(), cols);
    args.lse = make_view(poisoned<float>(static_cast<size_t>(num_toks() * case_.q_heads)),
                         num_toks(),
                         case_.q_heads);
    args.kv.k = reinterpret_cast<std::byte*>(device_.cache + keys_at_);
    args.kv.v = reinterpret_cast<std::byte*>(device_.cache + values_at_);
    args.block_table = make_view<const int32_t>(device_.table, rows, max_blocks_);
    args.idx_mapping = make_view<const int32_t>(device_.idx, rows);
    args.query_start_loc = make_view<const int32_t>(device_.starts, rows + 1);
    args.seq_lens = make_view<const int32_t>(device_.lens, rows);
    if (case_.sinks) {
      args.sinks = make_view<const float>(device_.sinks, case_.q_heads);
    }
    const size_t scratch =
        native_attention_scratch_bytes(kv_, case_.q_heads, static_cast<int32_t>(rows));
    args.scratch = make_view(poisoned<std::byte>(scratch), static_cast<int64_t>(scratch));
    return args;
  }

  Result fetch(const PagedAttentionArgs& args) {
    return {download_act(args.out),
            download(args.lse.data, static_cast<size_t>(num_toks() * case_.q_heads))};
  }

  Result run_cuda() {
    const PagedAttentionArgs args = cuda_args();
    paged_attention(stream(), args);
    return fetch(args);
  }

  Result run_cpu() {
    PagedAttentionArgs args = common();
    const int64_t rows = static_cast<int64_t>(case_.rows.size());
    const int64_t cols = int64_t{case_.q_heads} * case_.dim;
    Result result;
    result.out.assign(static_cast<size_t>(num_toks() * cols), -7.0F);
    result.lse.assign(static_cast<size_t>(num_toks() * case_.q_heads), -7.0F);
    args.q = make_strided<const float>(q_.data(), num_toks(), cols, q_stride_);
    args.out = make_view(result.out.data(), num_toks(), cols);
    args.lse = make_view(result.lse.data(), num_toks(), case_.q_heads);
    args.kv.k = reinterpret_cast<std::byte*>(cache_.data() + keys_at_);
    args.kv.v = reinterpret_cast<std::byte*>(cache_.data() + values_at_);
    args.block_table = make_view<const int32_t>(table_.data(), rows, max_blocks_);
    args.idx_mapping = make_view<const int32_t>(idx_mapping_.data(), rows);
    args.query_start_loc = make_view<const int32_t>(query_start_loc_.data(), rows + 1);
    args.seq_lens = make_view<const int32_t>(seq_lens_.data(), rows);
    if (case_.sinks) {
      args.sinks = make_view<const float>(sinks_.data(), case_.q_heads);
    }
    const size_t scratch = paged_attention_scratch_bytes(
        kv_, case_.q_heads, static_cast<int32_t>(rows), cpu_device().facts().num_threads);
    std::vector<std::byte> bytes(scratch);
    args.scratch = make_view(bytes.data(), static_cast<int64_t>(scratch));
    paged_attention(cpu_stream(), args);
    return result;
  }

  // Rows of padding must be left alone, all others be near.
  void expect_near(const Result& got, const Result& want) {
    const int64_t cols = int64_t{case_.q_heads} * case_.dim;
    for (size_t r = 0; r < case_.rows.size(); ++r) {
      for (int64_t t = query_start_loc_[r]; t < query_start_loc_[r + 1]; ++t) {
        for (int64_t i = t * cols; i < (t + 1) * cols; ++i) {
          const float g = got.out[static_cast<size_t>(i)];
          const float w = want.out[static_cast<size_t>(i)];
          if (idx_mapping_[r] < 0) {
            ASSERT_TRUE(std::isnan(g)) << "padding row " << r << " was written";
          } else {
            ASSERT_LE(std::abs(g - w), 0.006F + 0.01F * std::abs(w))
                << "row " << r << " of " << case_.rows[r].len << " token " << t << " column "
                << i % cols << ": " << g << " for " << w;
          }
        }
        for (int32_t h = 0; h < case_.q_heads && idx_mapping_[r] >= 0; ++h) {
          const auto i = static_cast<size_t>(t * case_.q_heads + h);
          ASSERT_LE(std::abs(got.lse[i] - want.lse[i]), 2e-3F + 1e-4F * std::abs(want.lse[i]))
              << "lse of row " << r << " head " << h;
        }
      }
    }
  }

  void check(const Case& c, uint32_t seed = 1) {
    SCOPED_TRACE(::testing::Message()
                 << "heads " << c.q_heads << "/" << c.kv_heads << " dim " << c.dim << " block "
                 << c.block_size << " nhd " << c.nhd << " apart " << c.apart << " layers "
                 << c.num_layers << " window " << c.window << " cap " << c.soft_cap << " sinks "
                 << c.sinks << " decode rows " << c.num_decode_rows);
    arena().reset();
    build(c, seed);
    const Result want = run_cpu();
    expect_near(run_cuda(), want);
    if (c.num_decode_rows > 0) {
      SCOPED_TRACE("settled");
      cuda::ScheduledAttentionArgs args{cuda_args(), c.window, true};
      cuda::attention_schedule(stream(), args);
      stream().synchronize();
      cuda::attention_forward(stream(), args);
      cuda::attention_forward(stream(), args);
      expect_near(fetch(args), want);
    }
  }

  struct {
    uint16_t* q;
    uint16_t* cache;
    int32_t* table;
    int32_t* idx;
    int32_t* starts;
    int32_t* lens;
    float* sinks;
  } device_ = {};
  Case case_;
  std::mt19937 rng_;
  std::vector<float> q_, sinks_;
  std::vector<uint16_t> cache_;
  std::vector<int32_t> table_, idx_mapping_, query_start_loc_, seq_lens_;
  KvLayerView kv_;
  int64_t keys_at_ = 0;  // elements
  int64_t values_at_ = 0;
  int64_t q_stride_ = 0;
  int32_t max_blocks_ = 0;
  int32_t num_blocks_ = 0;
};

Case with_decodes(std::vector<Row> rows) {
  Case c;
  c.num_decode_rows = static_cast<int32_t>(rows.size());
  c.rows = std::move(rows);
  return c;
}

TEST_F(AttentionCudaTest, DecodeOfEveryShortLength) {
  std::vector<Row> rows;
  for (int32_t len = 1; len <= 150; ++len) {
    rows.push_back({1, len});
  }
  check(with_decodes(rows));
  Case small = with_decodes(rows);
  small.dim = 64;
  check(small);
}

TEST_F(AttentionCudaTest, DecodeOfOneRow) {
  for (const int32_t len : {1, 15, 16, 17, 64, 255, 256, 257, 1000, 5000}) {
    check(with_decodes({{1, len}}));
  }
}

TEST_F(AttentionCudaTest, DecodeOfGroupsAndHeadSizes) {
  for (const int32_t dim : {64, 128}) {
    for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 9, 16}) {
      Case c = with_decodes(decode_rows(9, 1, 700, group));
      c.dim = dim;
      c.kv_heads = group == 3 ? 3 : 2;
      c.q_heads = group * c.kv_heads;
      check(c);
    }
  }
}

TEST_F(AttentionCudaTest, DecodeOfManyRowsWithLongOnes) {
  std::vector<Row> rows = decode_rows(120, 1, 300, 5);
  rows.push_back({1, 5000});
  rows[3].len = 4097;
  check(with_decodes(rows));
}

TEST_F(AttentionCudaTest, DecodeOfMoreSharesThanBlocks) {
  Case c = with_decodes(decode_rows(700, 1, 200, 12));
  c.q_heads = 16;
  c.kv_heads = 8;
  check(c);
  c = with_decodes(decode_rows(40, 1500, 2500, 13));
  c.q_heads = 16;
  c.kv_heads = 8;
  check(c);
}

TEST_F(AttentionCudaTest, DecodeWithPaddingRows) {
  std::vector<Row> rows = decode_rows(20, 1, 500, 6);
  for (const size_t r : {0, 1, 7, 18, 19}) {
    rows[r].len = 0;
  }
  check(with_decodes(rows));
  check(with_decodes({{1, 0}, {1, 0}}));
}

TEST_F(AttentionCudaTest, DecodeOfLayoutsAndBlockSizes) {
  for (const bool nhd : {false, true}) {
    for (const int32_t block_size : {16, 32, 48, 64, 128}) {
      Case c = with_decodes(decode_rows(12, 1, 900, 7));
      c.block_size = block_size;
      c.nhd = nhd;
      check(c);
    }
  }
}

// Keys and values in halves or side by side, a layer alone or among others, for decode and for both
// kinds of prefill tiles.
TEST_F(AttentionCudaTest, KeysAndValuesAnywhere) {
  for (const bool nhd : {false, true}) {
    for (const bool apart : {false, true}) {
      for (const int32_t num_layers : {1, 3}) {
        for (const int32_t dim : {64, 128}) {
          Case c = with_decodes(decode_rows(12, 1, 900, 7));
          c.dim = dim;
          c.nhd = nhd;
          c.apart = apart;
          c.num_layers = num_layers;
          c.block_size = dim == 64 ? 48 : 64;
          check(c);
          c.num_decode_rows = 0;
          c.rows = {{200, 200}, {0, 0}, {64, 900}, {1, 300}};
          check(c);
          c.kv_heads = 8;
          c.q_heads = 16;
          c.rows = {{1200, 1200}, {1, 70}, {500, 777}};
          check(c);
        }
      }
    }
  }
}

TEST_F(AttentionCudaTest, DecodeWithWindowsSinksAndSoftCap) {
  for (const int32_t window : {0, 1, 16, 100, 1024}) {
    for (const bool sinks : {false, true}) {
      Case c = with_decodes(decode_rows(10, 1, 3000, 8));
      c.window = window;
      c.sinks = sinks;
      c.soft_cap = sinks ? 20.0F : 0.0F;
      check(c);
    }
  }
}

TEST_F(AttentionCudaTest, PrefillOfOddShapes) {
  for (const int32_t dim : {64, 128}) {
    for (const int32_t group : {1, 2, 3, 4, 8, 16}) {
      Case c;
      c.dim = dim;
      c.q_heads = group * 2;
      c.rows = {{1, 1}, {63, 63}, {65, 200}, {1, 777}, {130, 1000}, {7, 7}};
      check(c);
    }
  }
}

TEST_F(AttentionCudaTest, PrefillInWideTiles) {
  for (const int32_t dim : {64, 128}) {
    Case c;
    c.dim = dim;
    c.q_heads = 32;
    c.kv_heads = 8;
    c.rows = {{700, 700}, {300, 1100}, {129, 129}};
    check(c);
  }
}

// Batches big enough for the kernel that Hopper has of its own.
TEST_F(AttentionCudaTest, PrefillInWideTilesOfGroupsAndLayouts) {
  for (const int32_t group : {1, 2, 3, 5, 8}) {
    for (const bool odd : {false, true}) {
      Case c;
      c.dim = group == 3 ? 64 : 128;
      c.kv_heads = 8;
      c.q_heads = 8 * group;
      c.nhd = odd;
      c.block_size = odd ? 48 : 16 << group % 4;
      c.rows = {{2400 / group, 2400 / group}, {1, 70}, {500, 777}, {0, 0}, {130, 130}};
      check(c);
    }
  }
}

TEST_F(AttentionCudaTest, PrefillInWideTilesWithWindowsSinksAndSoftCap) {
  for (const int32_t window : {0, 1, 100, 600}) {
    for (const bool odd : {false, true}) {
      Case c;
      c.q_heads = 16;
      c.kv_heads = 8;
      c.window = window;
      c.sinks = odd;
      c.soft_cap = odd ? 15.0F : 0.0F;
      c.rows = {{900, 900}, {400, 1433}};
      check(c);
    }
  }
  Case all;
  all.q_heads = 16;
  all.kv_heads = 8;
  all.causal = false;
  all.rows = {{1000, 1100}, {300, 400}};
  check(all);
}

TEST_F(AttentionCudaTest, PrefillWithWindowsSinksSoftCapAndLayouts) {
  for (const int32_t window : {0, 1, 50, 512}) {
    for (const bool odd : {false, true}) {
      Case c;
      c.window = window;
      c.sinks = odd;
      c.soft_cap = odd ? 15.0F : 0.0F;
      c.nhd = odd;
      c.block_size = odd ? 48 : 32;
      c.rows = {{200, 200}, {0, 0}, {64, 900}, {1, 300}};
      check(c);
    }
  }
  Case all;
  all.causal = false;
  all.rows = {{100, 150}, {3, 400}};
  check(all);
}

TEST_F(AttentionCudaTest, MixedBatches) {
  Case c;
  c.q_heads = 32;
  c.kv_heads = 8;
  c.rows = decode_rows(33, 1, 2000, 9);
  c.num_decode_rows = 33;
  c.rows.push_back({300, 812});
  c.rows.push_back({1, 40});
  c.rows.push_back({17, 17});
  check(c);
}

TEST_F(AttentionCudaTest, AGraphIsReplayedWithOtherLengths) {
  Case c = with_decodes(decode_rows(16, 2000, 2500, 10));
  build(c, 3);
  const PagedAttentionArgs args = cuda_args();
  stream().synchronize();
  stream().begin_capture();
  paged_attention(stream(), args);
  const std::unique_ptr<Graph> graph = stream().end_capture();
  for (const int32_t longest : {2000, 30, 1, 700}) {
    std::vector<int32_t> lens;
    for (int32_t r = 0; r < 16; ++r) {
      lens.push_back(std::max(1, longest - 40 * r));
    }
    stream().copy_to_device(device_.lens, lens.data(), lens.size() * sizeof(int32_t));
    stream().synchronize();
    seq_lens_ = lens;
    for (int32_t again = 0; again < 3; ++again) {
      stream().fill(args.out.data, 0xff, static_cast<size_t>(num_toks()) * args.out.shape[1] * 2);
      stream().launch_graph(*graph);
      expect_near(fetch(args), run_cpu());
    }
  }
}

// A whole mixed step: no row is known to have one token, so only padded counts are in the graph. It
// is replayed with other lengths, other numbers of queries a row and fewer rows and tokens.
TEST_F(AttentionCudaTest, AMixedGraphIsReplayedWithOtherRows) {
  for (const bool large : {false, true}) {
    Case c;
    c.window = large ? 0 : 300;
    c.kv_heads = large ? 8 : 2;
    c.q_heads = large ? 16 : 8;
    const int32_t toks = large ? 2048 : 128;
    // Room for every row's keys below; queries are dealt out anew for each replay.
    c.rows = {{toks - 3, 2500}, {1, 2500}, {1, 2500}, {1, 2500}};
    build(c, 6);
    const PagedAttentionArgs args = cuda_args();
    stream().synchronize();
    stream().begin_capture();
    paged_attention(stream(), args);
    const std::unique_ptr<Graph> graph = stream().end_capture();
    const std::vector<std::vector<Row>> steps = {
        {{1, 2500}, {1, 17}, {toks / 2, 2000}, {toks / 2 - 5, toks / 2 - 5}},
        {{1, 1}, {1, 900}, {1, 1300}, {0, 0}},
        {{toks, 2500}, {0, 0}, {0, 0}, {0, 0}},
        {{5, 5}, {7, 2100}, {1, 64}, {toks - 13, 2400}}};
    const std::vector<int32_t> rows = idx_mapping_;
    for (const std::vector<Row>& step : steps) {
      case_.rows = step;
      query_start_loc_ = {0};
      for (size_t r = 0; r < step.size(); ++r) {
        query_start_loc_.push_back(query_start_loc_.back() + step[r].queries);
        seq_lens_[r] = step[r].len;
        idx_mapping_[r] = step[r].len == 0 ? -1 : rows[r];
      }
      const auto put = [&](int32_t* to, const std::vector<int32_t>& from) {
        stream().copy_to_device(to, from.data(), from.size() * sizeof(int32_t));
      };
      put(device_.idx, idx_mapping_);
      put(device_.starts, query_start_loc_);
      put(device_.lens, seq_lens_);
      stream().synchronize();
      for (int32_t again = 0; again < 2; ++again) {
        stream().fill(args.out.data, 0xff, static_cast<size_t>(toks) * args.out.shape[1] * 2);
        stream().launch_graph(*graph);
        expect_near(fetch(args), run_cpu());
      }
    }
  }
}

TEST_F(AttentionCudaTest, EqualBatchesGiveEqualBits) {
  build(with_decodes(decode_rows(40, 1, 3000, 11)), 4);
  const Result first = run_cuda();
  for (int32_t again = 0; again < 5; ++again) {
    const Result next = run_cuda();
    EXPECT_EQ(first.out, next.out);
    EXPECT_EQ(first.lse, next.lse);
  }
}

// Every row alone, whole or its last part only, must repeat the bits that it had in company.
TEST_F(AttentionCudaTest, BatchInvariantResultsDoNotDependOnCompany) {
  Case c;
  c.q_heads = 32;
  c.kv_heads = 8;
  c.batch_invariant = true;
  c.rows = {{1, 900}, {1, 33}, {400, 400}, {90, 1500}, {1, 1}};
  c.num_decode_rows = 2;
  build(c, 5);
  const Result together = run_cuda();
  const std::vector<int32_t> starts = query_start_loc_;
  const std::vector<int32_t> rows = idx_mapping_;
  const auto cols = static_cast<size_t>(c.q_heads) * c.dim;
  for (size_t r = 0; r < c.rows.size(); ++r) {
    for (const int32_t queries : {c.rows[r].queries, std::min(c.rows[r].queries, 5)}) {
      const int32_t first = starts[r + 1] - queries;
      PagedAttentionArgs args = cuda_args();
      const std::vector<int32_t> start = {0, queries};
      args.q.data = static_cast<const uint16_t*>(args.q.data) + first * q_stride_;
      args.q.shape[0] = args.out.shape[0] = queries;
      args.idx_mapping = make_view<const int32_t>(device_.idx + r, 1);
      args.seq_lens = make_view<const int32_t>(device_.lens + r, 1);
      args.query_start_loc = make_view<const int32_t>(upload(start), 2);
      args.num_decode_rows = 0;
      paged_attention(stream(), args);
      const std::vector<float> alone = download_act(args.out);
      const auto from = together.out.begin() + static_cast<int64_t>(first * cols);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), from))
          << "row " << r << ", its last " << queries << " queries";
    }
  }
}

}  // namespace
}  // namespace warprow
