// SPDX-License-Identifier: Apache-2.0
// The native attention kernels against the CPU's, on inputs that are exact in bf16.
#include "device/graph.h"
#include "tests/cuda/attention_fixture.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace warprow {
namespace {

using Row = testing::AttentionRow;
using Case = testing::AttentionCase;
using testing::AttentionCudaTest;

std::vector<Row> decode_rows(int32_t n, int32_t shortest, int32_t longest, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int32_t> len(shortest, longest);
  std::vector<Row> rows;
  for (int32_t r = 0; r < n; ++r) {
    rows.push_back({1, len(rng)});
  }
  return rows;
}

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
  for (const int32_t dim : head_dims()) {
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

// Every cache layout (keys and values separate or adjacent, one layer or several), for decode and for both kinds of
// prefill tiles.
TEST_F(AttentionCudaTest, KeysAndValuesAnywhere) {
  for (const bool nhd : {false, true}) {
    for (const bool apart : {false, true}) {
      for (const int32_t num_layers : {1, 3}) {
        for (const int32_t dim : head_dims()) {
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
  for (const int32_t dim : head_dims()) {
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

// Batches large enough for the Hopper-only prefill kernel.
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
  all.rows = {{1000, 1000}, {300, 300}, {1, 1}};
  for (const int32_t window : {1, 65, 300}) {
    all.window = window;
    check(all);
  }
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
  all.window = 40;
  all.rows = {{100, 100}, {1, 1}, {300, 300}};
  check(all);
}

// Rows of 0 to decode_len queries (a token and its drafts), in one chunk of keys or several.
TEST_F(AttentionCudaTest, DecodeOfSeveralQueries) {
  std::mt19937 rng(17);
  for (const int32_t dim : head_dims()) {
    for (const int32_t group : {1, 2, 4, 5, 8, 16}) {
      for (const int32_t decode_len : {2, 3, 5, 9}) {
        Case c = with_decodes(decode_rows(23, 1, 900, group));
        c.dim = dim;
        c.q_heads = group * c.kv_heads;
        c.decode_len = decode_len;
        for (Row& row : c.rows) {
          row.queries = std::min(static_cast<int32_t>(rng() % (decode_len + 1)), row.len);
        }
        c.rows[5].len = 0;
        check(c);
      }
    }
  }
}

TEST_F(AttentionCudaTest, DecodeOfSeveralQueriesWithWindowsSinksAndSoftCap) {
  for (const int32_t window : {0, 1, 16, 100, 1024}) {
    const bool odd = window % 8 != 0;
    Case c;
    for (int32_t len = 4; len <= 600; len += 14) {
      c.rows.push_back({1 + len % 4, len});
    }
    c.num_decode_rows = static_cast<int32_t>(c.rows.size());
    c.q_heads = 16;
    c.decode_len = 4;
    c.window = window;
    c.sinks = odd;
    c.soft_cap = odd ? 15.0F : 0.0F;
    c.rows.push_back({90, 300});
    c.rows.push_back({5, 1300});
    check(c);
  }
}

// Enough rows that those with more than 16 query-head pairs take the prefill kernels.
TEST_F(AttentionCudaTest, DecodeOfSeveralQueriesOfManyRows) {
  for (const int32_t group : {2, 8}) {
    Case c = with_decodes(decode_rows(150, 1, 400, group));
    c.q_heads = group * c.kv_heads;
    c.decode_len = 4;
    for (size_t r = 0; r < c.rows.size(); ++r) {
      c.rows[r].queries = std::min(static_cast<int32_t>(r % 5), c.rows[r].len);
    }
    c.rows.push_back({90, 300});
    check(c);
  }
}

// A chunk of a row's keys may hold no key that is visible to the row's first query.
TEST_F(AttentionCudaTest, DecodeOfSeveralQueriesOfLongRows) {
  Case c = with_decodes({{5, 5000}, {1, 4097}, {3, 4098}, {5, 33}});
  c.q_heads = 16;
  c.decode_len = 5;
  check(c);
  c.window = 2;
  check(c);
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
    batch_.seq_lens = lens;
    for (int32_t again = 0; again < 3; ++again) {
      stream().fill(args.out.data, 0xff, static_cast<size_t>(num_toks()) * args.out.shape[1] * 2);
      stream().launch_graph(*graph);
      expect_near(fetch(args), run_cpu());
    }
  }
}

// A whole mixed step in one graph. No row is declared a decode row, so the graph holds only padded counts. It is
// replayed with other lengths, other numbers of queries per row, and fewer rows and tokens.
TEST_F(AttentionCudaTest, AMixedGraphIsReplayedWithOtherRows) {
  for (const bool large : {false, true}) {
    Case c;
    c.window = large ? 0 : 300;
    c.kv_heads = large ? 8 : 2;
    c.q_heads = large ? 16 : 8;
    const int32_t toks = large ? 2048 : 128;
    // Blocks for every row's keys below. Each replay distributes the queries anew.
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
    const std::vector<int32_t> rows = batch_.idx_mapping;
    for (const std::vector<Row>& step : steps) {
      batch_.c.rows = step;
      batch_.query_start_loc = {0};
      for (size_t r = 0; r < step.size(); ++r) {
        batch_.query_start_loc.push_back(batch_.query_start_loc.back() + step[r].queries);
        batch_.seq_lens[r] = step[r].len;
        batch_.idx_mapping[r] = step[r].len == 0 ? -1 : rows[r];
      }
      const auto put = [&](int32_t* to, const std::vector<int32_t>& from) {
        stream().copy_to_device(to, from.data(), from.size() * sizeof(int32_t));
      };
      put(device_.idx, batch_.idx_mapping);
      put(device_.starts, batch_.query_start_loc);
      put(device_.lens, batch_.seq_lens);
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

// Every row run alone, in full or only its last queries, must equal its result in the batch bit for bit.
TEST_F(AttentionCudaTest, BatchInvariantResultsDoNotDependOnCompany) {
  Case c;
  c.q_heads = 32;
  c.kv_heads = 8;
  c.batch_invariant = true;
  c.rows = {{1, 900}, {1, 33}, {400, 400}, {90, 1500}, {1, 1}};
  c.num_decode_rows = 2;
  build(c, 5);
  const Result together = run_cuda();
  const std::vector<int32_t> starts = batch_.query_start_loc;
  const std::vector<int32_t> rows = batch_.idx_mapping;
  const auto cols = static_cast<size_t>(c.q_heads) * c.dim;
  for (size_t r = 0; r < c.rows.size(); ++r) {
    for (const int32_t queries : {c.rows[r].queries, std::min(c.rows[r].queries, 5)}) {
      const int32_t first = starts[r + 1] - queries;
      PagedAttentionArgs args = cuda_args();
      const std::vector<int32_t> start = {0, queries};
      args.q.data = static_cast<const uint16_t*>(args.q.data) + first * batch_.q_stride;
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
