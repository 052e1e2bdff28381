// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kernels/attention/paged_attention.h"
#include "tests/support/equal_tables.h"
#include "tests/support/float8.h"
#include "tests/support/op_case.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow::testing {

struct AttentionRow {
  int32_t queries = 1;
  int32_t len = 1;  // KV length including the new tokens; 0: a padding row
};

struct AttentionCase {
  int32_t q_heads = 8;
  int32_t kv_heads = 2;
  int32_t dim = 128;
  int32_t block_size = 16;
  bool nhd = false;
  bool apart = false;      // keys and values in two separate halves of the cache
  int32_t num_layers = 1;  // layers interleaved within a block; the case reads the last one
  int32_t window = 0;
  float soft_cap = 0.0F;
  bool sinks = false;
  bool causal = true;
  bool batch_invariant = false;
  int32_t num_decode_rows = 0;
  int32_t decode_len = 1;
  bool shuffled = true;  // shuffle block and row numbers
  std::vector<AttentionRow> rows{};
  int32_t padding_toks = 0;    // tokens after the last row
  int32_t spare_cells = 0;     // more block table cells per row than the row needs
  int32_t unused_block = 0;    // in table cells without a block
  bool stale_values = false;   // cache slots without a token hold random numbers instead of NaN
  float q_scale = 1.5F;        // standard deviation of queries
  DType dtype = DType::kBF16;  // of the cache, or 8-bit floats with scales by KV head

  [[nodiscard]] std::string text() const {
    return fmt::format(
        "{} heads {}/{} dim {} block {} nhd {} apart {} layers {} window {} cap {} sinks {} decode "
        "rows {} of {}, {} rows",
        dtype_name(dtype),
        q_heads,
        kv_heads,
        dim,
        block_size,
        nhd,
        apart,
        num_layers,
        window,
        soft_cap,
        sinks,
        num_decode_rows,
        decode_len,
        rows.size());
  }

  // Bytes of keys and values, each read once per KV head.
  [[nodiscard]] double kv_bytes() const {
    double keys = 0;
    for (const AttentionRow& row : rows) {
      keys += row.len;
    }
    return 2.0 * static_cast<double>(dtype_bytes(dtype)) * keys * kv_heads * dim;
  }
  // Multiply-adds (counted as two) of QK and PV over the keys that the causal mask leaves visible.
  [[nodiscard]] double flops() const {
    double seen = 0;
    for (const AttentionRow& row : rows) {
      seen += row.queries * (row.len - (row.queries - 1) / 2.0);
    }
    return 4.0 * seen * q_heads * dim;
  }
};

// The batch layout and cache strides of a case, without keys or queries. Blocks are shuffled and block 0 is the null
// block. Request rows are in another order than the batch. Queries are a column slice of the fused QKV matrix.
struct AttentionLayout {
  AttentionLayout() = default;
  AttentionLayout(const AttentionCase& of, std::mt19937& rng) : c(of) {
    lay_out_batch(rng);
    lay_out_cache();
  }

  AttentionCase c;
  std::vector<int32_t> table, begins, idx_mapping, query_start_loc, seq_lens;
  KvLayerView kv;
  int64_t keys_at = 0;    // in elements
  int64_t values_at = 0;  // in elements
  int64_t cache_elements = 0;
  int64_t q_stride = 0;
  int32_t max_blocks = 1;
  int32_t num_blocks = 1;

  [[nodiscard]] int64_t num_row_toks() const { return query_start_loc.back(); }
  [[nodiscard]] int64_t num_toks() const { return num_row_toks() + c.padding_toks; }
  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(c.rows.size()); }
  [[nodiscard]] int64_t q_cols() const { return int64_t{c.q_heads} * c.dim; }
  // Index of the first key element of a row's token. Its value is at + values_at - keys_at.
  [[nodiscard]] int64_t key_index(size_t row, int32_t token, int32_t head) const {
    const int64_t cell = int64_t{idx_mapping[row]} * max_blocks + token / c.block_size;
    return keys_at + table[static_cast<size_t>(cell)] * kv.block_stride + head * kv.head_stride +
           token % c.block_size * kv.token_stride;
  }

  // Arguments without addresses.
  [[nodiscard]] PagedAttentionArgs args() const {
    PagedAttentionArgs args;
    args.kv = kv;
    args.num_q_heads = c.q_heads;
    args.window = c.window;
    args.scale = 1.0F / std::sqrt(static_cast<float>(c.dim));
    args.soft_cap = c.soft_cap;
    args.causal = c.causal;
    args.num_decode_rows = c.num_decode_rows;
    args.num_decode_toks = query_start_loc[static_cast<size_t>(c.num_decode_rows)];
    args.decode_len = c.decode_len;
    args.batch_invariant = c.batch_invariant;
    return args;
  }
  // Arguments with the tables copied into `memory`.
  [[nodiscard]] PagedAttentionArgs args(CaseMemory& memory) const {
    PagedAttentionArgs out = args();
    out.block_table = {memory.put(table), memory.put(begins), static_cast<int32_t>(table.size())};
    out.idx_mapping = make_view<const int32_t>(memory.put(idx_mapping), num_rows());
    out.query_start_loc = make_view<const int32_t>(memory.put(query_start_loc), num_rows() + 1);
    out.seq_lens = make_view<const int32_t>(memory.put(seq_lens), num_rows());
    return out;
  }

 private:
  void lay_out_batch(std::mt19937& rng) {
    const auto n = static_cast<int32_t>(c.rows.size());
    query_start_loc = {0};
    for (const AttentionRow& row : c.rows) {
      query_start_loc.push_back(query_start_loc.back() + row.queries);
      seq_lens.push_back(row.len);
      max_blocks = std::max(max_blocks, ceil_div(row.len, c.block_size));
      num_blocks += ceil_div(row.len, c.block_size);
    }
    max_blocks += c.spare_cells;
    idx_mapping.resize(static_cast<size_t>(n));
    std::iota(idx_mapping.begin(), idx_mapping.end(), 0);
    if (c.shuffled) {
      std::shuffle(idx_mapping.begin(), idx_mapping.end(), rng);
    }
    table.assign(static_cast<size_t>(n) * static_cast<size_t>(max_blocks), c.unused_block);
    begins = test::equal_begins(n, max_blocks);
    std::vector<int32_t> ids(static_cast<size_t>(num_blocks - 1));
    std::iota(ids.begin(), ids.end(), 1);
    if (c.shuffled) {
      std::shuffle(ids.begin(), ids.end(), rng);
    }
    size_t next = 0;
    for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
      for (int32_t b = 0; b < ceil_div(seq_lens[r], c.block_size); ++b) {
        const int64_t cell = int64_t{idx_mapping[r]} * max_blocks + b;
        table[static_cast<size_t>(cell)] = ids[next++];
      }
      if (seq_lens[r] == 0) {
        idx_mapping[r] = -1;
      }
    }
  }

  void lay_out_cache() {
    kv.dtype = c.dtype;
    kv.block_size = c.block_size;
    kv.num_kv_heads = c.kv_heads;
    kv.head_dim_k = kv.head_dim_v = c.dim;
    kv.head_stride = c.nhd ? c.dim : int64_t{c.block_size} * c.dim;
    kv.token_stride = c.nhd ? int64_t{c.kv_heads} * c.dim : c.dim;
    const int64_t own = int64_t{c.block_size} * c.kv_heads * c.dim;
    const int64_t piece = c.apart ? own : 2 * own;
    kv.block_stride = c.num_layers * piece;
    keys_at = (c.num_layers - 1) * piece;
    values_at = keys_at + (c.apart ? num_blocks * kv.block_stride : own);
    cache_elements = num_blocks * c.num_layers * 2 * own;
    q_stride = int64_t{c.q_heads + 2 * c.kv_heads} * c.dim;
  }
};

// A case with random keys, values, queries and sinks, all exactly representable in bf16 and in the cache's type. Cache
// slots without a token are NaN.
struct AttentionBatch : AttentionLayout {
  AttentionBatch() = default;
  AttentionBatch(const AttentionCase& of, uint32_t seed) : AttentionBatch(of, std::mt19937(seed)) {}

  std::vector<uint16_t> cache;  // the elements as bf16, before any scale
  std::vector<float> q;         // [num_toks, q_stride]
  std::vector<float> sink_values;
  std::vector<float> k_scales, v_scales;  // by KV head; 1 but for 8-bit floats

  // The elements in the cache's type.
  [[nodiscard]] std::vector<std::byte> stored_cache() const {
    std::vector<std::byte> bytes(cache.size() * dtype_bytes(c.dtype));
    if (!is_f8(c.dtype)) {
      std::memcpy(bytes.data(), cache.data(), bytes.size());
      return bytes;
    }
    std::transform(cache.begin(), cache.end(), bytes.begin(), [this](uint16_t bits) {
      return static_cast<std::byte>(f8_bits(c.dtype, bf16_to_f32(bits)));
    });
    return bytes;
  }
  [[nodiscard]] int64_t element_bytes() const { return static_cast<int64_t>(dtype_bytes(c.dtype)); }

  struct Result {
    std::vector<double> out;  // [num_toks, q_cols]; NaN for padding rows
    std::vector<double> lse;  // [num_toks, q_heads]
  };
  // Attention computed in double.
  [[nodiscard]] Result reference() const {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    Result result{std::vector<double>(static_cast<size_t>(num_toks() * q_cols()), kNan),
                  std::vector<double>(static_cast<size_t>(num_toks() * c.q_heads), kNan)};
    for (size_t r = 0; r < c.rows.size(); ++r) {
      for (int32_t i = 0; i < c.rows[r].queries && idx_mapping[r] >= 0; ++i) {
        for (int32_t h = 0; h < c.q_heads; ++h) {
          attend(r, i, h, result);
        }
      }
    }
    return result;
  }

 private:
  AttentionBatch(const AttentionCase& of, std::mt19937 rng) : AttentionLayout(of, rng) {
    fill_cache(rng);
    k_scales.assign(static_cast<size_t>(c.kv_heads), 1.0F);
    v_scales = k_scales;
    for (size_t h = 0; is_f8(c.dtype) && h < k_scales.size(); ++h) {
      k_scales[h] = 0.3F + 0.17F * static_cast<float>(h % 7);
      v_scales[h] = 0.9F - 0.11F * static_cast<float>(h % 6);
    }
    std::normal_distribution<float> normal(0.0F, c.q_scale);
    q.assign(static_cast<size_t>(num_toks() * q_stride), 0.0F);
    for (float& v : q) {
      v = normal(rng);
    }
    q = rounded_to(DType::kBF16, std::move(q));
    for (int32_t h = 0; h < c.q_heads; ++h) {
      sink_values.push_back(normal(rng) * 2.0F);
    }
  }

  void fill_cache(std::mt19937& rng) {
    cache.assign(static_cast<size_t>(cache_elements), 0xffff);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    if (c.stale_values) {
      std::generate(cache.begin(), cache.end(), [&] { return rounded(normal(rng)); });
      return;
    }
    for (size_t r = 0; r < c.rows.size(); ++r) {
      for (int32_t t = 0; t < seq_lens[r]; ++t) {
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          const int64_t at = key_index(r, t, h);
          for (int32_t d = 0; d < c.dim; ++d) {
            cache[static_cast<size_t>(at + d)] = rounded(normal(rng));
            cache[static_cast<size_t>(at + values_at - keys_at + d)] = rounded(normal(rng));
          }
        }
      }
    }
  }

  [[nodiscard]] uint16_t rounded(float v) const {
    return f32_to_bf16(is_f8(c.dtype) ? f8_value(c.dtype, f8_bits(c.dtype, v)) : v);
  }
  [[nodiscard]] double element(int64_t at) const {
    return static_cast<double>(bf16_to_f32(cache[static_cast<size_t>(at)]));
  }

  // Attention of one query and head.
  void attend(size_t row, int32_t query, int32_t head, Result& result) const {
    const int32_t position = c.rows[row].len - c.rows[row].queries + query;
    const int32_t kv_head = head / (c.q_heads / c.kv_heads);
    const int32_t len = c.rows[row].len;
    const int32_t begin = c.window > 0 ? std::max(0, position - c.window + 1) : 0;
    const int32_t ahead = c.causal ? 1 : c.window > 0 ? c.window : len;
    const int32_t end = std::min(position + ahead, len);
    const int64_t tok = query_start_loc[row] + query;
    const float* vector = q.data() + tok * q_stride + int64_t{head} * c.dim;
    const double sink =
        c.sinks ? static_cast<double>(sink_values[static_cast<size_t>(head)]) : -1e300;
    std::vector<double> scores;
    double top = sink;
    for (int32_t t = begin; t < end; ++t) {
      const int64_t key = key_index(row, t, kv_head);
      double score = 0.0;
      for (int32_t d = 0; d < c.dim; ++d) {
        score += static_cast<double>(vector[d]) * element(key + d);
      }
      score *= static_cast<double>(k_scales[static_cast<size_t>(kv_head)]) /
               std::sqrt(static_cast<double>(c.dim));
      if (c.soft_cap > 0.0F) {
        const auto cap = static_cast<double>(c.soft_cap);
        score = cap * std::tanh(score / cap);
      }
      scores.push_back(score);
      top = std::max(top, score);
    }
    double sum = c.sinks ? std::exp(sink - top) : 0.0;
    double* out = result.out.data() + tok * q_cols() + int64_t{head} * c.dim;
    std::fill_n(out, c.dim, 0.0);
    for (int32_t t = begin; t < end; ++t) {
      const double weight = std::exp(scores[static_cast<size_t>(t - begin)] - top);
      const int64_t value = key_index(row, t, kv_head) + values_at - keys_at;
      sum += weight;
      for (int32_t d = 0; d < c.dim; ++d) {
        out[d] += weight * element(value + d);
      }
    }
    for (int32_t d = 0; d < c.dim; ++d) {
      out[d] *= static_cast<double>(v_scales[static_cast<size_t>(kv_head)]) / sum;
    }
    result.lse[static_cast<size_t>(tok * c.q_heads + head)] = top + std::log(sum);
  }
};

}  // namespace warprow::testing
