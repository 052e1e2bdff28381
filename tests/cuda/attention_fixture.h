// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kernels/attention/native/scheduled_attention.h"
#include "kernels/attention/paged_attention.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/equal_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {

struct AttentionRow {
  int32_t queries = 1;
  int32_t len = 1;  // keys, the queries' own included; 0: a row of padding
};

struct AttentionCase {
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
  int32_t decode_len = 1;
  std::vector<AttentionRow> rows;
};

// The native attention kernels beside the CPU's, on inputs that bf16 holds exactly.
class AttentionCudaTest : public CudaTest {
 protected:
  struct Result {
    std::vector<float> out;
    std::vector<float> lse;
  };

  // Lays a case out in memory: shuffled blocks whose unused places are NaN, rows in another order
  // than the batch, the queries a window of wider rows.
  void build(const AttentionCase& c, uint32_t seed) {
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
    device_.begins = upload(begins_);
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
    for (const AttentionRow& row : case_.rows) {
      query_start_loc_.push_back(query_start_loc_.back() + row.queries);
      seq_lens_.push_back(row.len);
      max_blocks_ = std::max(max_blocks_, ceil_div(row.len, case_.block_size));
    }
    idx_mapping_.resize(n);
    std::iota(idx_mapping_.begin(), idx_mapping_.end(), 0);
    std::shuffle(idx_mapping_.begin(), idx_mapping_.end(), rng_);
    table_.assign(static_cast<size_t>(n) * max_blocks_, 0);
    begins_ = test::equal_begins(n, max_blocks_);
    int32_t num_blocks = 1;
    for (const AttentionRow& row : case_.rows) {
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
    const AttentionCase& c = case_;
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
    args.num_decode_toks = query_start_loc_[static_cast<size_t>(case_.num_decode_rows)];
    args.decode_len = case_.decode_len;
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
    args.block_table = {device_.table, device_.begins, static_cast<int32_t>(table_.size())};
    args.idx_mapping = make_view<const int32_t>(device_.idx, rows);
    args.query_start_loc = make_view<const int32_t>(device_.starts, rows + 1);
    args.seq_lens = make_view<const int32_t>(device_.lens, rows);
    if (case_.sinks) {
      args.sinks = make_view<const float>(device_.sinks, case_.q_heads);
    }
    const size_t scratch = native_attention_scratch_bytes(
        kv_, case_.q_heads, static_cast<int32_t>(rows), case_.decode_len);
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
    args.block_table = {table_.data(), begins_.data(), static_cast<int32_t>(table_.size())};
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

  // Padding rows must be unchanged; all other rows must be near the expected values.
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

  void check(const AttentionCase& c, uint32_t seed = 1) {
    SCOPED_TRACE(::testing::Message()
                 << "heads " << c.q_heads << "/" << c.kv_heads << " dim " << c.dim << " block "
                 << c.block_size << " nhd " << c.nhd << " apart " << c.apart << " layers "
                 << c.num_layers << " window " << c.window << " cap " << c.soft_cap << " sinks "
                 << c.sinks << " decode rows " << c.num_decode_rows << " of " << c.decode_len);
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
    int32_t* begins;
    int32_t* idx;
    int32_t* starts;
    int32_t* lens;
    float* sinks;
  } device_ = {};
  AttentionCase case_;
  std::mt19937 rng_;
  std::vector<float> q_, sinks_;
  std::vector<uint16_t> cache_;
  std::vector<int32_t> table_, begins_, idx_mapping_, query_start_loc_, seq_lens_;
  KvLayerView kv_;
  int64_t keys_at_ = 0;  // elements
  int64_t values_at_ = 0;
  int64_t q_stride_ = 0;
  int32_t max_blocks_ = 0;
  int32_t num_blocks_ = 0;
};

}  // namespace warprow::testing
