// SPDX-License-Identifier: Apache-2.0
// The backend `flashinfer` against the CPU's paged attention on the same bf16 numbers.
#include "attention/flashinfer.h"
#include "attention/phased.h"
#include "device/graph.h"
#include "kernels/attention/paged_attention.h"
#include "tests/cuda/attention_fixture.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

using testing::AttentionCase;
using testing::AttentionRow;

// Rows and tokens of padding at the end of a step.
constexpr int32_t kPadding = 2;

int32_t num_decode_rows(const std::vector<AttentionRow>& rows) {
  const auto is_decode = [](const AttentionRow& row) { return row.queries <= 1; };
  return static_cast<int32_t>(std::find_if_not(rows.begin(), rows.end(), is_decode) - rows.begin());
}

class FlashInferTest : public testing::AttentionCudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && gpu().facts().compute_capability != 90) {
      GTEST_SKIP() << "these kernels are for Hopper";
    }
  }

  virtual std::unique_ptr<AttentionBackend> make_backend() { return make_flashinfer(); }

  // Appends the padding and builds the case on both devices.
  void make_inputs(AttentionCase c, int32_t num_padding) {
    arena().reset();
    c.rows.insert(c.rows.end(), static_cast<size_t>(num_padding), {0, 0});
    c.padding_toks = num_padding;
    c.spare_cells = 1;
    c.unused_block = 1 << 28;
    c.stale_values = true;
    c.q_scale = 1.0F;
    build(c, static_cast<uint32_t>(random_()));
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

  OnGpu put_on_gpu(bool batch_invariant) {
    const PagedAttentionArgs args = cuda_args();
    const auto num_rows = static_cast<int32_t>(batch_.num_rows());
    const auto num_toks = static_cast<int32_t>(batch_.num_toks());
    OnGpu on;
    on.backend = make_backend();
    on.group.window = batch_.c.window;
    AttentionLimits limits;
    limits.kv = batch_.kv;
    limits.num_heads = batch_.c.q_heads;
    limits.max_num_rows = num_rows + 3;
    limits.max_num_toks = num_toks + 5;
    limits.max_num_blocks = batch_.max_blocks;
    limits.num_table_cells = static_cast<int32_t>(batch_.table.size());
    limits.batch_invariant = batch_invariant;
    on.backend->allocate(arena(), gpu(), limits);

    on.metadata.block_table = args.block_table;
    AttentionBatch& rows = on.metadata.batch;
    rows.idx_mapping = args.idx_mapping;
    rows.query_start_loc = args.query_start_loc;
    rows.seq_lens = args.seq_lens;
    rows.num_rows = num_rows;
    rows.num_toks = num_toks;
    rows.num_decode_rows = rows.num_decode_toks = num_decode_rows(batch_.c.rows);
    AttentionCall& call = on.call;
    call.q = args.q;
    call.out = args.out;
    call.num_heads = args.num_q_heads;
    call.kv = args.kv;
    call.params.scale = args.scale;
    call.params.window = args.window;
    return on;
  }

  std::vector<float> on_gpu(bool batch_invariant) {
    OnGpu on = put_on_gpu(batch_invariant);
    on.run(stream());
    return download_act(on.call.out);
  }

  void expect_equal(const AttentionCase& c, int32_t num_padding = kPadding) {
    SCOPED_TRACE(c.text());
    make_inputs(c, num_padding);
    expect_near(on_gpu(false));
  }

  void expect_near(const std::vector<float>& got) {
    const std::vector<float> expected = run_cpu().out;
    const auto cols = static_cast<size_t>(batch_.q_cols());
    const size_t real = static_cast<size_t>(batch_.num_row_toks()) * cols;
    float worst = 0.0F;
    for (size_t i = 0; i < real; ++i) {
      const float error = std::abs(got[i] - expected[i]) / (1.0F + std::abs(expected[i]));
      ASSERT_LT(error, 0.01F) << "token " << i / cols << " column " << i % cols << ": " << got[i]
                              << " for " << expected[i];
      worst = std::max(worst, error);
    }
    for (size_t i = real; i < got.size(); ++i) {
      ASSERT_TRUE(std::isnan(got[i])) << "padding token " << i / cols << " was written";
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
                 .nhd = nhd,
                 .apart = apart,
                 .num_layers = num_layers,
                 .rows = {{1, 4000}, {1, 1}, {1, 77}, {7, 900}, {129, 129}, {300, 700}}}))
                << "nhd " << nhd << " apart " << apart << " layers " << num_layers;
          }
        }
      }
    }
  }

  // A whole mixed step in one graph. No row is declared a decode row, so the graph holds only padded counts. It is
  // replayed with other lengths, other numbers of queries per row, and fewer rows and tokens.
  void expect_mixed_graph_replays(AttentionCase c) {
    constexpr int32_t kToks = 600;
    c.rows = {{kToks - 3, 2500}, {1, 2500}, {1, 2500}, {1, 2500}};
    make_inputs(c, 0);
    OnGpu on = put_on_gpu(false);
    on.metadata.batch.num_decode_rows = on.metadata.batch.num_decode_toks = 0;
    on.run(stream());  // loads modules, which a capture does not allow
    stream().synchronize();
    stream().begin_capture();
    on.run(stream());
    const std::unique_ptr<Graph> graph = stream().end_capture();
    const std::vector<std::vector<AttentionRow>> steps = {
        {{1, 2500}, {1, 17}, {kToks / 2, 2000}, {kToks / 2 - 5, kToks / 2 - 5}},
        {{1, 1}, {1, 900}, {1, 1300}, {0, 0}},
        {{kToks, 2500}, {0, 0}, {0, 0}, {0, 0}},
        {{5, 5}, {7, 2100}, {1, 64}, {kToks - 13, 2400}}};
    const std::vector<int32_t> rows = batch_.idx_mapping;
    for (const std::vector<AttentionRow>& step : steps) {
      batch_.c.rows = step;
      int32_t tok = 0;
      for (size_t r = 0; r < step.size(); ++r) {
        batch_.query_start_loc[r] = tok;
        tok += step[r].queries;
        batch_.seq_lens[r] = step[r].len;
        batch_.idx_mapping[r] = step[r].len == 0 ? -1 : rows[r];
      }
      batch_.query_start_loc.back() = tok;
      const auto put = [&](const int32_t* to, const std::vector<int32_t>& from) {
        stream().copy_to_device(
            const_cast<int32_t*>(to), from.data(), from.size() * sizeof(int32_t));
      };
      put(on.metadata.batch.idx_mapping.data, batch_.idx_mapping);
      put(on.metadata.batch.query_start_loc.data, batch_.query_start_loc);
      put(on.metadata.batch.seq_lens.data, batch_.seq_lens);
      stream().synchronize();
      stream().fill(on.call.out.data, 0xff, static_cast<size_t>(kToks * batch_.q_cols()) * 2);
      stream().launch_graph(*graph);
      ASSERT_NO_FATAL_FAILURE(expect_near(download_act(on.call.out))) << tok << " tokens";
    }
  }

  void expect_first_row_alone_equal(AttentionCase c) {
    for (const int32_t len : {3000, 10, 700, 65, 1500}) {
      c.rows.push_back({1, len});
    }
    make_inputs(c, kPadding);
    const std::vector<float> together = on_gpu(true);
    batch_.c.rows.resize(1);
    batch_.c.padding_toks = 0;
    batch_.idx_mapping.resize(1);
    batch_.query_start_loc = {0, 1};
    batch_.seq_lens.resize(1);
    upload_batch();
    const std::vector<float> one = on_gpu(true);
    ASSERT_EQ(one.size(), static_cast<size_t>(batch_.q_cols()));
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(one[i], together[i]) << "column " << i;
    }
  }

  std::mt19937 random_{7};
  float largest_error_ = 0.0F;
};

TEST_F(FlashInferTest, DecodeForEveryGroupHeadSizeAndBlockSize) {
  for (const int32_t head_dim : {64, 128}) {
    for (int32_t group = 1; group <= 8; ++group) {
      for (const int32_t block_size : {16, 32, 48, 64, 128}) {
        AttentionCase c{.q_heads = 2 * group, .dim = head_dim, .block_size = block_size};
        for (const int32_t len : {1, 5, 63, 64, 65, 200, 1023, 5000}) {
          c.rows.push_back({1, len});
        }
        ASSERT_NO_FATAL_FAILURE(expect_equal(c));
      }
    }
  }
  RecordProperty("largest_error", fmt::format("{}", largest_error_));
}

TEST_F(FlashInferTest, DecodeOfManyRowsWithoutSplits) {
  AttentionCase c{.q_heads = 32, .kv_heads = 8};
  for (int32_t i = 0; i < 150; ++i) {
    c.rows.push_back({1, 1 + static_cast<int32_t>(random_() % 400)});
  }
  expect_equal(c, 7);
}

TEST_F(FlashInferTest, MixedBatches) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 3, 4, 7, 8}) {
      for (const int32_t block_size : {16, 128}) {
        ASSERT_NO_FATAL_FAILURE(expect_equal({.q_heads = 2 * group,
                                              .dim = head_dim,
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
  expect_equal({.q_heads = 2, .kv_heads = 1, .rows = {{2500, 2500}}}, 0);
  expect_equal({.q_heads = 2, .kv_heads = 1, .dim = 64, .rows = {{1000, 3000}, {900, 900}}});
}

TEST_F(FlashInferTest, KeysAndValuesAnywhere) { expect_equal_for_every_layout(); }

TEST_F(FlashInferTest, AMixedGraphIsReplayedWithOtherRows) {
  expect_mixed_graph_replays({.q_heads = 32, .kv_heads = 8});
  expect_mixed_graph_replays({.q_heads = 4, .dim = 64});
}

TEST_F(FlashInferTest, BatchInvariantDecodeIsTheSameAloneAndInABatch) {
  expect_first_row_alone_equal({.q_heads = 32, .kv_heads = 8});
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
          AttentionCase c{
              .q_heads = 2 * group, .dim = head_dim, .block_size = block_size, .window = window};
          for (const int32_t len : {1, 5, 63, 64, 65, 200, 1023, 3000}) {
            c.rows.push_back({1, len});
          }
          ASSERT_NO_FATAL_FAILURE(expect_equal(c));
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
        AttentionCase c{.q_heads = 2 * group,
                        .dim = head_dim,
                        .block_size = group == 7 ? 64 : 16,
                        .window = window,
                        .rows = {{1, 3000}, {1, 1}, {1, 77}, {2, 2}, {7, 900}, {1, 300}}};
        ASSERT_NO_FATAL_FAILURE(expect_equal(c)) << "tiles of 16";
        c.rows.insert(c.rows.end(), {{129, 129}, {33, 2000}});
        ASSERT_NO_FATAL_FAILURE(expect_equal(c)) << "tiles of 64 or 128";
      }
    }
  }
}

TEST_F(FlashInferFa2Test, PromptsWithAndWithoutSplits) {
  for (const int32_t window : {0, 129}) {
    expect_equal({.q_heads = 16, .kv_heads = 8, .window = window, .rows = {{1200, 1200}}}, 0);
    expect_equal({.q_heads = 9, .kv_heads = 1, .window = window, .rows = {{90, 3000}, {20, 20}}});
    expect_equal({.q_heads = 2, .kv_heads = 1, .dim = 64, .rows = {{500, 2999}}});
  }
}

TEST_F(FlashInferFa2Test, ManyRows) {
  AttentionCase c{.q_heads = 3, .kv_heads = 1, .window = 64};
  for (int32_t i = 0; i < 1500; ++i) {
    c.rows.push_back({1, 1 + static_cast<int32_t>(random_() % 100)});
  }
  expect_equal(c, 7);
  for (AttentionRow& row : c.rows) {
    row.queries = 1 + static_cast<int32_t>(random_() % std::min(row.len, 3));
  }
  expect_equal(c, 7);
}

TEST_F(FlashInferFa2Test, AGraphIsReplayedWithOtherLengths) {
  AttentionCase c{.q_heads = 14, .window = 500};
  for (int32_t i = 0; i < 6; ++i) {
    c.rows.push_back({1, 2500 - i});
  }
  make_inputs(c, kPadding);
  OnGpu on = put_on_gpu(false);
  stream().synchronize();
  stream().begin_capture();
  on.run(stream());
  const std::unique_ptr<Graph> graph = stream().end_capture();
  for (const int32_t longest : {2500, 60, 1, 900}) {
    for (size_t b = 0; b < c.rows.size(); ++b) {
      batch_.seq_lens[b] = std::max(1, longest - 90 * static_cast<int32_t>(b));
      batch_.c.rows[b].len = batch_.seq_lens[b];
    }
    auto* lens = const_cast<int32_t*>(on.metadata.batch.seq_lens.data);
    stream().copy_to_device(lens, batch_.seq_lens.data(), batch_.seq_lens.size() * sizeof(int32_t));
    stream().launch_graph(*graph);
    ASSERT_NO_FATAL_FAILURE(expect_near(download_act(on.call.out))) << longest;
  }
}

TEST_F(FlashInferFa2Test, KeysAndValuesAnywhere) { expect_equal_for_every_layout(); }

TEST_F(FlashInferFa2Test, AMixedGraphIsReplayedWithOtherRows) {
  expect_mixed_graph_replays({.q_heads = 14, .window = 500});
  expect_mixed_graph_replays({.q_heads = 32, .kv_heads = 8});
}

TEST_F(FlashInferFa2Test, BatchInvariantDecodeIsTheSameAloneAndInABatch) {
  expect_first_row_alone_equal({.q_heads = 40, .kv_heads = 8, .window = 1000});
}

// Decode rows run on `native`, other rows on flashinfer.
class PhasedTest : public FlashInferTest {
 protected:
  std::unique_ptr<AttentionBackend> make_backend() override { return make_phased_attention(); }
};

TEST_F(PhasedTest, KeysAndValuesAnywhere) { expect_equal_for_every_layout(); }

TEST_F(PhasedTest, AMixedGraphIsReplayedWithOtherRows) {
  expect_mixed_graph_replays({.q_heads = 32, .kv_heads = 8});
}

}  // namespace
}  // namespace warprow
