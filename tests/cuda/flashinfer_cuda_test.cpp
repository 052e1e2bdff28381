// SPDX-License-Identifier: Apache-2.0
// The backend `flashinfer` against the CPU's paged attention on the same bf16 numbers.
#include "attention/flashinfer.h"
#include "attention/phased.h"
#include "device/graph.h"
#include "kernels/attention/paged_attention.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/equal_tables.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

struct Row {
  int32_t query_len = 1;
  int32_t seq_len = 0;
};

struct Batch {
  int32_t head_dim = 128;
  int32_t group = 4;
  int32_t num_kv_heads = 2;
  int32_t block_size = 16;
  std::vector<Row> rows = {};
  int32_t num_padding = 2;  // padding rows and padding tokens
  int32_t window = 0;
  bool nhd = false;
  bool apart = false;      // keys and values in two halves
  int32_t num_layers = 1;  // side by side in a block; the last one is read

  [[nodiscard]] int32_t num_heads() const { return group * num_kv_heads; }
  [[nodiscard]] int32_t num_rows() const { return static_cast<int32_t>(rows.size()) + num_padding; }
  [[nodiscard]] int32_t num_real_toks() const {
    return std::accumulate(rows.begin(), rows.end(), 0, [](int32_t sum, const Row& row) {
      return sum + row.query_len;
    });
  }
  [[nodiscard]] int32_t num_toks() const { return num_real_toks() + num_padding; }
  [[nodiscard]] int32_t num_decode_rows() const {
    int32_t n = 0;
    while (n < static_cast<int32_t>(rows.size()) && rows[n].query_len == 1) {
      ++n;
    }
    return n == static_cast<int32_t>(rows.size()) ? num_rows() : n;
  }
  [[nodiscard]] int32_t blocks_of(const Row& row) const {
    return (row.seq_len + block_size - 1) / block_size;
  }
  [[nodiscard]] std::string name() const {
    return fmt::format("head size {}, group {}, block {}, window {}, {} rows, {} tokens",
                       head_dim,
                       group,
                       block_size,
                       window,
                       rows.size(),
                       num_real_toks());
  }
};

class FlashInferTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && gpu().facts().compute_capability != 90) {
      GTEST_SKIP() << "these kernels are for Hopper";
    }
  }

  virtual std::unique_ptr<AttentionBackend> make_backend() { return make_flashinfer(); }

  std::vector<float> random_values(size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    std::generate(values.begin(), values.end(), [&] { return normal(random_); });
    return rounded(values);
  }

  // Tables over shuffled blocks and rows, lengths, and a random cache.
  void make_inputs(const Batch& batch) {
    arena().reset();
    const auto num_rows = static_cast<size_t>(batch.num_rows());
    idx_mapping_.assign(num_rows, -1);
    std::iota(idx_mapping_.begin(), idx_mapping_.begin() + batch.rows.size(), 0);
    std::shuffle(idx_mapping_.begin(), idx_mapping_.begin() + batch.rows.size(), random_);
    query_start_.assign(num_rows + 1, batch.num_real_toks());
    seq_lens_.assign(num_rows, 0);
    int32_t tok = 0;
    int32_t num_blocks = 1;
    max_blocks_ = 1;
    for (size_t b = 0; b < batch.rows.size(); ++b) {
      query_start_[b] = tok;
      tok += batch.rows[b].query_len;
      seq_lens_[b] = batch.rows[b].seq_len;
      num_blocks += batch.blocks_of(batch.rows[b]);
      max_blocks_ = std::max(max_blocks_, batch.blocks_of(batch.rows[b]) + 1);
    }
    std::vector<int32_t> order(static_cast<size_t>(num_blocks - 1));
    std::iota(order.begin(), order.end(), 1);
    std::shuffle(order.begin(), order.end(), random_);
    block_table_.assign(num_rows * static_cast<size_t>(max_blocks_), 1 << 28);
    table_begins_ = test::equal_begins(static_cast<int64_t>(num_rows), max_blocks_);
    auto next = order.begin();
    for (size_t b = 0; b < batch.rows.size(); ++b) {
      const int32_t blocks = batch.blocks_of(batch.rows[b]);
      std::copy(next, next + blocks, block_table_.begin() + idx_mapping_[b] * max_blocks_);
      next += blocks;
    }
    kv_.dtype = DType::kBF16;
    kv_.block_size = batch.block_size;
    kv_.num_kv_heads = batch.num_kv_heads;
    kv_.head_dim_k = kv_.head_dim_v = batch.head_dim;
    const int64_t dim = batch.head_dim;
    kv_.token_stride = batch.nhd ? dim * batch.num_kv_heads : dim;
    kv_.head_stride = batch.nhd ? dim : dim * batch.block_size;
    const int64_t own = dim * batch.num_kv_heads * batch.block_size;
    const int64_t piece = batch.apart ? own : 2 * own;
    kv_.block_stride = batch.num_layers * piece;
    keys_at_ = (batch.num_layers - 1) * piece;
    values_at_ = keys_at_ + (batch.apart ? num_blocks * kv_.block_stride : own);
    cache_ = to_bf16(random_values(static_cast<size_t>(num_blocks * batch.num_layers * 2 * own)));
    q_cols_ = int64_t{batch.num_heads()} * batch.head_dim;
    qkv_cols_ = q_cols_ + 2 * int64_t{batch.num_kv_heads} * batch.head_dim;
    qkv_ = random_values(static_cast<size_t>(batch.num_toks() * qkv_cols_));
  }

  int32_t num_table_cells() const { return static_cast<int32_t>(block_table_.size()); }

  KvLayerView layer_at(void* cache) const {
    KvLayerView kv = kv_;
    kv.k = static_cast<std::byte*>(cache) + keys_at_ * 2;
    kv.v = static_cast<std::byte*>(cache) + values_at_ * 2;
    return kv;
  }

  std::vector<float> on_cpu(const Batch& batch) {
    std::vector<float> out(static_cast<size_t>(batch.num_toks() * q_cols_));
    PagedAttentionArgs args;
    args.q = ActView(DType::kF32, qkv_.data(), batch.num_toks(), q_cols_, qkv_cols_);
    args.out = ActView(DType::kF32, out.data(), batch.num_toks(), q_cols_);
    args.kv = layer_at(cache_.data());
    args.block_table = {block_table_.data(), table_begins_.data(), num_table_cells()};
    args.idx_mapping = make_view<const int32_t>(idx_mapping_.data(), batch.num_rows());
    args.query_start_loc = make_view<const int32_t>(query_start_.data(), batch.num_rows() + 1);
    args.seq_lens = make_view<const int32_t>(seq_lens_.data(), batch.num_rows());
    std::vector<std::byte> scratch(paged_attention_scratch_bytes(
        args.kv, batch.num_heads(), batch.num_rows(), cpu_device().facts().num_threads));
    args.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
    args.num_q_heads = batch.num_heads();
    args.window = batch.window;
    args.scale = 1.0F / std::sqrt(static_cast<float>(batch.head_dim));
    paged_attention(cpu_stream(), args);
    return out;
  }

  struct OnGpu {
    std::unique_ptr<AttentionBackend> backend;
    KvGroupSpec group;
    AttentionMetadata metadata;
    AttentionCall call;
    void run(Stream& stream) {
      backend->forward(stream, call, backend->build_metadata(stream, group, metadata));
    }
  };

  OnGpu put_on_gpu(const Batch& batch, bool batch_invariant) {
    OnGpu on;
    on.backend = make_backend();
    on.group.window = batch.window;
    AttentionLimits limits;
    limits.kv = kv_;
    limits.num_heads = batch.num_heads();
    limits.max_num_rows = batch.num_rows() + 3;
    limits.max_num_toks = batch.num_toks() + 5;
    limits.max_num_blocks = max_blocks_;
    limits.num_table_cells = num_table_cells();
    limits.batch_invariant = batch_invariant;
    on.backend->allocate(arena(), gpu(), limits);

    on.metadata.block_table = {upload(block_table_), upload(table_begins_), num_table_cells()};
    AttentionBatch& rows = on.metadata.batch;
    rows.idx_mapping = make_view<const int32_t>(upload(idx_mapping_), batch.num_rows());
    rows.query_start_loc = make_view<const int32_t>(upload(query_start_), batch.num_rows() + 1);
    rows.seq_lens = make_view<const int32_t>(upload(seq_lens_), batch.num_rows());
    rows.num_rows = batch.num_rows();
    rows.num_toks = batch.num_toks();
    rows.num_decode_rows = rows.num_decode_toks = batch.num_decode_rows();
    AttentionCall& call = on.call;
    call.q = ActView(DType::kBF16, upload(to_bf16(qkv_)), batch.num_toks(), q_cols_, qkv_cols_);
    call.out = poisoned_act(DType::kBF16, batch.num_toks(), q_cols_);
    call.num_heads = batch.num_heads();
    call.kv = layer_at(upload(cache_));
    call.params.scale = 1.0F / std::sqrt(static_cast<float>(batch.head_dim));
    call.params.window = batch.window;
    return on;
  }

  std::vector<float> on_gpu(const Batch& batch, bool batch_invariant) {
    OnGpu on = put_on_gpu(batch, batch_invariant);
    on.run(stream());
    return download_act(on.call.out);
  }

  void expect_equal(const Batch& batch) {
    SCOPED_TRACE(batch.name());
    make_inputs(batch);
    expect_near(batch, on_gpu(batch, false));
  }

  void expect_near(const Batch& batch, const std::vector<float>& got) {
    const std::vector<float> expected = on_cpu(batch);
    const auto real = static_cast<size_t>(batch.num_real_toks() * q_cols_);
    float worst = 0.0F;
    for (size_t i = 0; i < real; ++i) {
      const float error = std::abs(got[i] - expected[i]) / (1.0F + std::abs(expected[i]));
      ASSERT_LT(error, 0.01F) << "token " << i / q_cols_ << " column " << i % q_cols_ << ": "
                              << got[i] << " for " << expected[i];
      worst = std::max(worst, error);
    }
    for (size_t i = real; i < got.size(); ++i) {
      ASSERT_TRUE(std::isnan(got[i])) << "padding token " << i / q_cols_ << " was written";
    }
    largest_error_ = std::max(largest_error_, worst);
  }

  // Every cache layout, for decode rows and for other rows.
  void expect_equal_for_every_layout() {
    for (const bool nhd : {false, true}) {
      for (const bool apart : {false, true}) {
        for (const int32_t num_layers : {1, 3}) {
          for (const int32_t block_size : {16, 64}) {
            ASSERT_NO_FATAL_FAILURE(expect_equal(
                {.block_size = block_size,
                 .rows = {{1, 4000}, {1, 1}, {1, 77}, {7, 900}, {129, 129}, {300, 700}},
                 .nhd = nhd,
                 .apart = apart,
                 .num_layers = num_layers}))
                << "nhd " << nhd << " apart " << apart << " layers " << num_layers;
          }
        }
      }
    }
  }

  // A whole mixed step in one graph. No row is declared a decode row, so the graph holds only padded counts. It is
  // replayed with other lengths, other numbers of queries per row, and fewer rows and tokens.
  void expect_mixed_graph_replays(Batch batch) {
    constexpr int32_t kToks = 600;
    batch.rows = {{kToks - 3, 2500}, {1, 2500}, {1, 2500}, {1, 2500}};
    batch.num_padding = 0;
    make_inputs(batch);
    OnGpu on = put_on_gpu(batch, false);
    on.metadata.batch.num_decode_rows = on.metadata.batch.num_decode_toks = 0;
    on.run(stream());  // loads modules, which a capture does not allow
    stream().synchronize();
    stream().begin_capture();
    on.run(stream());
    const std::unique_ptr<Graph> graph = stream().end_capture();
    const std::vector<std::vector<Row>> steps = {
        {{1, 2500}, {1, 17}, {kToks / 2, 2000}, {kToks / 2 - 5, kToks / 2 - 5}},
        {{1, 1}, {1, 900}, {1, 1300}, {0, 0}},
        {{kToks, 2500}, {0, 0}, {0, 0}, {0, 0}},
        {{5, 5}, {7, 2100}, {1, 64}, {kToks - 13, 2400}}};
    const std::vector<int32_t> rows = idx_mapping_;
    for (const std::vector<Row>& step : steps) {
      int32_t tok = 0;
      for (size_t r = 0; r < step.size(); ++r) {
        query_start_[r] = tok;
        tok += step[r].query_len;
        seq_lens_[r] = step[r].seq_len;
        idx_mapping_[r] = step[r].seq_len == 0 ? -1 : rows[r];
      }
      query_start_.back() = tok;
      const auto put = [&](const int32_t* to, const std::vector<int32_t>& from) {
        stream().copy_to_device(
            const_cast<int32_t*>(to), from.data(), from.size() * sizeof(int32_t));
      };
      put(on.metadata.batch.idx_mapping.data, idx_mapping_);
      put(on.metadata.batch.query_start_loc.data, query_start_);
      put(on.metadata.batch.seq_lens.data, seq_lens_);
      stream().synchronize();
      stream().fill(on.call.out.data, 0xff, static_cast<size_t>(kToks * q_cols_) * 2);
      stream().launch_graph(*graph);
      Batch now = batch;
      now.rows = step;
      ASSERT_NO_FATAL_FAILURE(expect_near(now, download_act(on.call.out))) << tok << " tokens";
    }
  }

  void expect_first_row_alone_equal(Batch batch) {
    for (const int32_t len : {3000, 10, 700, 65, 1500}) {
      batch.rows.push_back({1, len});
    }
    make_inputs(batch);
    const std::vector<float> together = on_gpu(batch, true);
    Batch alone = batch;
    alone.rows.resize(1);
    alone.num_padding = 0;
    idx_mapping_.resize(1);
    query_start_ = {0, 1};
    seq_lens_.resize(1);
    const std::vector<float> one = on_gpu(alone, true);
    for (int64_t i = 0; i < q_cols_; ++i) {
      ASSERT_EQ(one[static_cast<size_t>(i)], together[static_cast<size_t>(i)]) << "column " << i;
    }
  }

  std::mt19937 random_{7};
  std::vector<int32_t> idx_mapping_, query_start_, seq_lens_, block_table_, table_begins_;
  int32_t max_blocks_ = 0;
  KvLayerView kv_;
  int64_t keys_at_ = 0, values_at_ = 0;  // elements
  std::vector<uint16_t> cache_;
  std::vector<float> qkv_;
  int64_t q_cols_ = 0, qkv_cols_ = 0;
  float largest_error_ = 0.0F;
};

TEST_F(FlashInferTest, DecodeForEveryGroupHeadSizeAndBlockSize) {
  for (const int32_t head_dim : {64, 128}) {
    for (int32_t group = 1; group <= 8; ++group) {
      for (const int32_t block_size : {16, 32, 48, 64, 128}) {
        Batch batch{.head_dim = head_dim, .group = group, .block_size = block_size};
        for (const int32_t len : {1, 5, 63, 64, 65, 200, 1023, 5000}) {
          batch.rows.push_back({1, len});
        }
        ASSERT_NO_FATAL_FAILURE(expect_equal(batch));
      }
    }
  }
  RecordProperty("largest_error", fmt::format("{}", largest_error_));
}

TEST_F(FlashInferTest, DecodeOfManyRowsWithoutSplits) {
  Batch batch{.num_kv_heads = 8, .num_padding = 7};
  for (int32_t i = 0; i < 150; ++i) {
    batch.rows.push_back({1, 1 + static_cast<int32_t>(random_() % 400)});
  }
  expect_equal(batch);
}

TEST_F(FlashInferTest, MixedBatches) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 3, 4, 7, 8}) {
      for (const int32_t block_size : {16, 128}) {
        ASSERT_NO_FATAL_FAILURE(expect_equal({.head_dim = head_dim,
                                              .group = group,
                                              .block_size = block_size,
                                              .rows = {{1, 4000},
                                                       {1, 1},
                                                       {1, 77},
                                                       {2, 2},
                                                       {7, 900},
                                                       {129, 129},
                                                       {300, 700},
                                                       {1, 300},
                                                       {64, 2000}}}));
      }
    }
  }
}

TEST_F(FlashInferTest, LongPrompt) {
  expect_equal({.group = 2, .num_kv_heads = 1, .rows = {{2500, 2500}}, .num_padding = 0});
  expect_equal({.head_dim = 64, .group = 2, .num_kv_heads = 1, .rows = {{1000, 3000}, {900, 900}}});
}

TEST_F(FlashInferTest, KeysAndValuesAnywhere) { expect_equal_for_every_layout(); }

TEST_F(FlashInferTest, AMixedGraphIsReplayedWithOtherRows) {
  expect_mixed_graph_replays({.num_kv_heads = 8});
  expect_mixed_graph_replays({.head_dim = 64, .group = 2});
}

TEST_F(FlashInferTest, BatchInvariantDecodeIsTheSameAloneAndInABatch) {
  expect_first_row_alone_equal({.num_kv_heads = 8});
}

// The FA2 template. `auto` never selects it where `native` or the kernels above can serve.
class FlashInferFa2Test : public FlashInferTest {
 protected:
  void SetUp() override { CudaTest::SetUp(); }
  std::unique_ptr<AttentionBackend> make_backend() override { return make_flashinfer_fa2(); }
};

TEST_F(FlashInferFa2Test, DecodeForAnyGroupHeadSizeBlockSizeAndWindow) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 2, 5, 7, 9, 16, 20}) {
      for (const int32_t block_size : {16, 64}) {
        for (const int32_t window : {0, 1, 100, 2000}) {
          Batch batch{
              .head_dim = head_dim, .group = group, .block_size = block_size, .window = window};
          for (const int32_t len : {1, 5, 63, 64, 65, 200, 1023, 3000}) {
            batch.rows.push_back({1, len});
          }
          ASSERT_NO_FATAL_FAILURE(expect_equal(batch));
        }
      }
    }
  }
  RecordProperty("largest_error", fmt::format("{}", largest_error_));
}

TEST_F(FlashInferFa2Test, MixedBatches) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 5, 7, 16}) {
      for (const int32_t window : {0, 70, 1000}) {
        Batch batch{.head_dim = head_dim,
                    .group = group,
                    .block_size = group == 7 ? 64 : 16,
                    .rows = {{1, 3000}, {1, 1}, {1, 77}, {2, 2}, {7, 900}, {1, 300}},
                    .window = window};
        ASSERT_NO_FATAL_FAILURE(expect_equal(batch)) << "tiles of 16";
        batch.rows.insert(batch.rows.end(), {{129, 129}, {33, 2000}});
        ASSERT_NO_FATAL_FAILURE(expect_equal(batch)) << "tiles of 64 or 128";
      }
    }
  }
}

TEST_F(FlashInferFa2Test, PromptsWithAndWithoutSplits) {
  for (const int32_t window : {0, 129}) {
    expect_equal({.group = 2,
                  .num_kv_heads = 8,
                  .rows = {{1200, 1200}},
                  .num_padding = 0,
                  .window = window});
    expect_equal({.group = 9, .num_kv_heads = 1, .rows = {{90, 3000}, {20, 20}}, .window = window});
    expect_equal({.head_dim = 64, .group = 2, .num_kv_heads = 1, .rows = {{500, 2999}}});
  }
}

TEST_F(FlashInferFa2Test, ManyRows) {
  Batch batch{.group = 3, .num_kv_heads = 1, .num_padding = 7, .window = 64};
  for (int32_t i = 0; i < 1500; ++i) {
    batch.rows.push_back({1, 1 + static_cast<int32_t>(random_() % 100)});
  }
  expect_equal(batch);
  for (Row& row : batch.rows) {
    row.query_len = 1 + static_cast<int32_t>(random_() % std::min(row.seq_len, 3));
  }
  expect_equal(batch);
}

TEST_F(FlashInferFa2Test, AGraphIsReplayedWithOtherLengths) {
  Batch batch{.group = 7, .rows = {}, .window = 500};
  for (int32_t i = 0; i < 6; ++i) {
    batch.rows.push_back({1, 2500 - i});
  }
  make_inputs(batch);
  OnGpu on = put_on_gpu(batch, false);
  stream().synchronize();
  stream().begin_capture();
  on.run(stream());
  const std::unique_ptr<Graph> graph = stream().end_capture();
  for (const int32_t longest : {2500, 60, 1, 900}) {
    for (size_t b = 0; b < batch.rows.size(); ++b) {
      batch.rows[b].seq_len = seq_lens_[b] = std::max(1, longest - 90 * static_cast<int32_t>(b));
    }
    auto* lens = const_cast<int32_t*>(on.metadata.batch.seq_lens.data);
    stream().copy_to_device(lens, seq_lens_.data(), seq_lens_.size() * sizeof(int32_t));
    stream().launch_graph(*graph);
    ASSERT_NO_FATAL_FAILURE(expect_near(batch, download_act(on.call.out))) << longest;
  }
}

TEST_F(FlashInferFa2Test, KeysAndValuesAnywhere) { expect_equal_for_every_layout(); }

TEST_F(FlashInferFa2Test, AMixedGraphIsReplayedWithOtherRows) {
  expect_mixed_graph_replays({.group = 7, .window = 500});
  expect_mixed_graph_replays({.num_kv_heads = 8});
}

TEST_F(FlashInferFa2Test, BatchInvariantDecodeIsTheSameAloneAndInABatch) {
  expect_first_row_alone_equal({.group = 5, .num_kv_heads = 8, .window = 1000});
}

// Decode rows run on `native`, other rows on flashinfer.
class PhasedTest : public FlashInferTest {
 protected:
  std::unique_ptr<AttentionBackend> make_backend() override { return make_phased_attention(); }
};

TEST_F(PhasedTest, KeysAndValuesAnywhere) { expect_equal_for_every_layout(); }

TEST_F(PhasedTest, AMixedGraphIsReplayedWithOtherRows) {
  expect_mixed_graph_replays({.num_kv_heads = 8});
}

}  // namespace
}  // namespace warprow
