// SPDX-License-Identifier: Apache-2.0
// Batch-invariant attention by the native kernels: a query's result has the same bits whichever kernel computes it, and
// whatever it is computed with. With a cache of bf16 and of 8-bit floats.
#include "kernels/attention/native/params.h"
#include "tests/cuda/attention_fixture.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace warprow {
namespace {

using Row = testing::AttentionRow;
using Case = testing::AttentionCase;

// Consecutive queries of a row of the case, as one row of a step: with the keys that its last query sees.
struct Span {
  size_t row = 0;
  int32_t first = 0;  // among the row's queries
  int32_t num = 1;
};

class AttentionInvarianceTest : public testing::AttentionCudaTest,
                                public ::testing::WithParamInterface<DType> {
 protected:
  // What the schedule of the last step says: work for the decode kernel, and query tiles for the prompt kernels.
  struct Work {
    int32_t decode_pieces = 0;
    int32_t prompt_tiles = 0;
  };

  [[nodiscard]] bool is_hopper() const { return gpu().facts().compute_capability == 90; }

  // Computes every query of the case as a prompt.
  void begin(Case c, uint32_t seed = 1) {
    c.batch_invariant = true;
    c.num_decode_rows = 0;
    c.dtype = GetParam();
    arena().reset();
    build(c, seed);
    q_bits_ = to_bf16(batch_.q);
    scratch_bytes_ = native_attention_scratch_bytes(
        batch_.kv, c.q_heads, kMaxRows, std::max(c.decode_len, kMaxDecodeLen));
    scratch_ = poisoned<std::byte>(scratch_bytes_);
    std::vector<Span> all;
    for (size_t r = 0; r < c.rows.size(); ++r) {
      all.push_back({r, 0, c.rows[r].queries});
    }
    expected_ = run(all, 0, 1);
  }
  // And compares that with the CPU's kernel.
  void begin_checked(const Case& c, uint32_t seed = 1) {
    begin(c, seed);
    expect_near({from_bf16(expected_.out), expected_.lse}, run_cpu());
  }

  // Expects every query of the spans to have the bits of `begin`. The first num_decode_rows are declared decode rows.
  Work expect_same(const std::vector<Span>& spans,
                   int32_t num_decode_rows,
                   int32_t decode_len = 1) {
    const Bits got = run(spans, num_decode_rows, decode_len);
    const auto cols = static_cast<size_t>(batch_.q_cols());
    const auto heads = static_cast<size_t>(batch_.c.q_heads);
    size_t tok = 0;
    for (const Span& span : spans) {
      const auto from =
          static_cast<size_t>(batch_.query_start_loc[span.row]) + static_cast<size_t>(span.first);
      for (size_t i = 0; i < static_cast<size_t>(span.num); ++i, ++tok) {
        const bool same =
            std::memcmp(&got.out[tok * cols], &expected_.out[(from + i) * cols], cols * 2) == 0 &&
            std::memcmp(&got.lse[tok * heads], &expected_.lse[(from + i) * heads], heads * 4) == 0;
        if (!same) {
          ADD_FAILURE() << difference(got, tok, from + i) << "; query " << span.first + i
                        << " of row " << span.row << " (" << batch_.c.rows[span.row].len
                        << " keys), in a span of " << span.num << " with " << spans.size()
                        << " rows, " << num_decode_rows << " decode rows of " << decode_len << "; "
                        << batch_.c.text();
          return got.work;
        }
      }
    }
    return got.work;
  }

  // The last query of every row, in its order.
  [[nodiscard]] std::vector<Span> last_queries(int32_t num = 1, int32_t before = 0) const {
    std::vector<Span> spans;
    for (size_t r = 0; r < batch_.c.rows.size(); ++r) {
      const int32_t end = batch_.c.rows[r].queries - before;
      if (end > 0) {
        spans.push_back({r, std::max(0, end - num), std::min(num, end)});
      }
    }
    return spans;
  }

  // The bits of every query of the case.
  [[nodiscard]] const std::vector<uint16_t>& results() const { return expected_.out; }
  [[nodiscard]] const std::vector<float>& lse() const { return expected_.lse; }

  // Every way in which a step may compute these queries.
  void expect_same_everywhere(const std::vector<int32_t>& decode_lens) {
    expect_all_decode(last_queries(), 1);
    for (const Span& span : last_queries()) {
      expect_all_decode({span}, 1);
    }
    for (const int32_t len : decode_lens) {
      for (const int32_t before : {0, 1, 3}) {
        expect_all_decode(last_queries(len, before), len);
      }
    }
    expect_same(last_queries(), 0);
    for (const int32_t chunk : {3, 40, 64, 100}) {
      for (const int32_t before : {0, 5}) {
        expect_same(last_queries(chunk, before), 0);
      }
    }
  }

  void expect_all_decode(const std::vector<Span>& spans, int32_t decode_len) {
    const Work work = expect_same(spans, static_cast<int32_t>(spans.size()), decode_len);
    const int32_t group = batch_.c.q_heads / batch_.c.kv_heads;
    if (is_hopper() && (decode_len == 1 || decode_len * group <= 16)) {
      EXPECT_GE(work.decode_pieces, static_cast<int32_t>(spans.size()) * batch_.c.kv_heads);
      EXPECT_EQ(work.prompt_tiles, 0);
    }
  }

 private:
  static constexpr int32_t kMaxRows = 300;
  static constexpr int32_t kMaxDecodeLen = 9;
  struct Bits {
    std::vector<uint16_t> out;
    std::vector<float> lse;
    Work work;
  };

  Bits run(const std::vector<Span>& spans, int32_t num_decode_rows, int32_t decode_len) {
    const auto num_rows = static_cast<int32_t>(spans.size());
    const auto stride = static_cast<size_t>(batch_.q_stride);
    std::vector<uint16_t> q;
    std::vector<int32_t> idx;
    std::vector<int32_t> starts = {0};
    std::vector<int32_t> lens;
    for (const Span& span : spans) {
      const int32_t from = batch_.query_start_loc[span.row] + span.first;
      const auto at = q_bits_.begin() + static_cast<int64_t>(static_cast<size_t>(from) * stride);
      q.insert(q.end(), at, at + static_cast<int64_t>(static_cast<size_t>(span.num) * stride));
      idx.push_back(batch_.idx_mapping[span.row]);
      starts.push_back(starts.back() + span.num);
      const Row& row = batch_.c.rows[span.row];
      lens.push_back(row.len - row.queries + span.first + span.num);
    }
    const int64_t toks = starts.back();
    const int64_t cols = batch_.q_cols();
    PagedAttentionArgs args = cuda_args_of_case();
    args.q = ActView(DType::kBF16, upload(q), toks, cols, batch_.q_stride);
    args.out = poisoned_act(DType::kBF16, toks, cols);
    args.lse = make_view(
        poisoned<float>(static_cast<size_t>(toks * batch_.c.q_heads)), toks, batch_.c.q_heads);
    args.idx_mapping = make_view<const int32_t>(upload(idx), num_rows);
    args.query_start_loc = make_view<const int32_t>(upload(starts), num_rows + 1);
    args.seq_lens = make_view<const int32_t>(upload(lens), num_rows);
    args.scratch = make_view(scratch_, static_cast<int64_t>(scratch_bytes_));
    args.num_decode_rows = num_decode_rows;
    args.num_decode_toks = starts[static_cast<size_t>(num_decode_rows)];
    args.decode_len = decode_len;
    for (size_t i = static_cast<size_t>(num_decode_rows); i < lens.size(); ++i) {
      args.most_prompt_keys = std::max(args.most_prompt_keys, lens[i]);
    }
    paged_attention(stream(), args);
    Bits bits;
    bits.out =
        download(static_cast<const uint16_t*>(args.out.data), static_cast<size_t>(toks * cols));
    bits.lse = download(args.lse.data, static_cast<size_t>(toks * batch_.c.q_heads));
    bits.work = work_of(args);
    return bits;
  }

  PagedAttentionArgs cuda_args_of_case() {
    PagedAttentionArgs args = batch_.args();
    set_cache(args);
    args.block_table = {device_.table, device_.begins, static_cast<int32_t>(batch_.table.size())};
    if (batch_.c.sinks) {
      args.sinks = make_view<const float>(device_.sinks, batch_.c.q_heads);
    }
    return args;
  }

  Work work_of(const PagedAttentionArgs& args) {
    const auto rows = static_cast<int32_t>(args.seq_lens.shape[0]);
    const cuda::ScratchLayout layout =
        cuda::native_scratch_layout(batch_.c.kv_heads,
                                    batch_.c.q_heads / batch_.c.kv_heads,
                                    batch_.c.dim,
                                    rows,
                                    args.decode_len);
    const auto read = [&](size_t at) {
      return download(reinterpret_cast<const int32_t*>(scratch_ + at), 1)[0];
    };
    Work work;
    work.decode_pieces = read(layout.counts);
    // The number of rows for the prompt kernels is not known here: the tiles before the end of all of them, or of none.
    const bool all_decode = args.num_decode_rows == rows && work.decode_pieces > 0;
    const auto ends = static_cast<size_t>(
        all_decode ? 0 : rows - (work.decode_pieces > 0 ? args.num_decode_rows : 0));
    work.prompt_tiles = read(layout.prefill_tiles + ends * sizeof(int32_t));
    return work;
  }

  [[nodiscard]] std::string difference(const Bits& got, size_t tok, size_t want) const {
    const auto cols = static_cast<size_t>(batch_.q_cols());
    for (size_t i = 0; i < cols; ++i) {
      const uint16_t a = got.out[tok * cols + i];
      const uint16_t b = expected_.out[want * cols + i];
      if (a != b) {
        return fmt::format("column {}: {} for {}", i, bf16_to_f32(a), bf16_to_f32(b));
      }
    }
    return "the log-sum-exp";
  }

  std::vector<uint16_t> q_bits_;
  std::byte* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  Bits expected_;
};

INSTANTIATE_TEST_SUITE_P(Caches,
                         AttentionInvarianceTest,
                         ::testing::ValuesIn(testing::kCacheTypes),
                         [](const auto& cache) { return std::string(dtype_name(cache.param)); });

// Lengths on both sides of every kind of border: boxes of 16 keys, tiles of 64, parts of 256.
std::vector<Row> rows_at_borders(int32_t queries) {
  std::vector<Row> rows;
  for (const int32_t border : {1, 16, 64, 128, 256, 512, 1024}) {
    for (const int32_t len : {border - 1, border, border + 1}) {
      if (len > 0) {
        rows.push_back({std::min(queries, len), len});
      }
    }
  }
  return rows;
}

TEST_P(AttentionInvarianceTest, EveryGroupAndHeadSize) {
  for (const int32_t dim : head_dims()) {
    for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 16}) {
      Case c;
      c.dim = dim;
      c.q_heads = group * c.kv_heads;
      c.rows = rows_at_borders(110);
      SCOPED_TRACE(c.text());
      begin_checked(c, static_cast<uint32_t>(group));
      expect_same_everywhere({2, 5});
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST_P(AttentionInvarianceTest, ValuesOfTheReferenceInDouble) {
  for (const int32_t dim : head_dims()) {
    Case c;
    c.dim = dim;
    c.q_heads = 4;
    c.rows = {{5, 1030}, {40, 300}, {1, 9000}, {3, 3}};
    begin(c, 9);
    const testing::AttentionBatch::Result exact = batch_.reference();
    for (size_t i = 0; i < exact.out.size(); ++i) {
      const double want = exact.out[i];
      ASSERT_LE(std::abs(static_cast<double>(bf16_to_f32(results()[i])) - want),
                0.006 + 0.01 * std::abs(want))
          << "element " << i;
    }
    for (size_t i = 0; i < exact.lse.size(); ++i) {
      const double want = exact.lse[i];
      ASSERT_LE(std::abs(static_cast<double>(lse()[i]) - want), 2e-3 + 1e-4 * std::abs(want));
    }
    expect_same_everywhere({2});
  }
}

// The decode kernel alone, for every length up to a few parts.
TEST_P(AttentionInvarianceTest, EveryShortLength) {
  Case c;
  c.q_heads = 4;
  c.rows = {{700, 700}};
  begin_checked(c);
  for (int32_t first = 0; first < 700; first += 140) {
    std::vector<Span> spans;
    for (int32_t i = 0; i < 140; ++i) {
      spans.push_back({0, first + i, 1});
    }
    expect_all_decode(spans, 1);
  }
  for (int32_t first = 0; first + 4 <= 700; first += 4 * 50) {
    std::vector<Span> spans;
    for (int32_t i = 0; i < 50 && first + 4 * i + 4 <= 700; ++i) {
      spans.push_back({0, first + 4 * i, 4});
    }
    expect_all_decode(spans, 4);
  }
}

// Contexts on both sides of every tile's and part's border up to 8,192 keys, and a little beyond.
TEST_P(AttentionInvarianceTest, EveryBorder) {
  constexpr int32_t kTile = 64;
  for (const int32_t dim : {64, 128}) {
    Case c;
    c.dim = dim;
    c.kv_heads = 1;
    c.q_heads = 2;
    c.rows = {{8800, 8800}};
    begin_checked(c);
    for (int32_t first = kTile; first + kTile < 8800; first += 64 * kTile) {
      std::vector<Span> one;
      std::vector<Span> three;
      for (int32_t border = first; border < first + 64 * kTile && border + kTile < 8800;
           border += kTile) {
        for (const int32_t len : {border - 1, border, border + 1}) {
          one.push_back({0, len - 1, 1});
        }
        three.push_back({0, border - 2, 3});
      }
      expect_all_decode(one, 1);
      expect_all_decode(three, 3);
      expect_same(one, 0);
    }
  }
}

TEST_P(AttentionInvarianceTest, LongRows) {
  for (const int32_t dim : head_dims()) {
    Case c;
    c.dim = dim;
    c.q_heads = 4;
    c.rows = {{70, 2047},
              {70, 2048},
              {70, 2049},
              {70, 5000},
              {70, 8191},
              {70, 8192},
              {70, 8193},
              {70, 8704},
              {90, 16'450},
              {70, 21'000}};
    begin_checked(c);
    expect_same_everywhere({2, 4});
  }
}

// More rows and parts than scratch has room for, so that some are split and others are not.
TEST_P(AttentionInvarianceTest, BatchesOfEverySize) {
  std::mt19937 rng(3);
  Case c;
  c.q_heads = 8;
  c.kv_heads = 4;
  for (int32_t r = 0; r < 256; ++r) {
    c.rows.push_back({1, 1 + static_cast<int32_t>(rng() % (r % 8 == 0 ? 4096 : 600))});
  }
  begin_checked(c);
  const std::vector<Span> all = last_queries();
  for (const size_t n : {2, 3, 8, 20, 33, 64, 100, 200, 256}) {
    std::vector<Span> some = all;
    std::shuffle(some.begin(), some.end(), rng);
    some.resize(n);
    expect_all_decode(some, 1);
    // Half of them as decode rows, the others as prompts of one token.
    expect_same(some, static_cast<int32_t>(n / 2));
  }
}

// From 1,024 pieces on a warp takes pieces of its own.
TEST_P(AttentionInvarianceTest, ManyPieces) {
  std::mt19937 rng(5);
  for (const int32_t dim : {64, 128}) {
    for (const int32_t group : {1, 3, 8}) {
      Case c;
      c.dim = dim;
      c.kv_heads = 8;
      c.q_heads = 8 * group;
      if (group == 3) {
        c.window = 130;
        c.sinks = true;
        c.soft_cap = 20.0F;
      }
      for (int32_t r = 0; r < 160; ++r) {
        c.rows.push_back({1, 1 + static_cast<int32_t>(rng() % (r % 16 == 0 ? 3000 : 700))});
      }
      begin_checked(c);
      const std::vector<Span> all = last_queries();
      expect_all_decode(all, 1);
      expect_all_decode({all.begin() + 3, all.begin() + 50}, 1);
      expect_same(all, 130);
    }
  }
}

// Prompts that fill the device take the kernel with wgmma on Hopper.
TEST_P(AttentionInvarianceTest, LargePrompts) {
  for (const int32_t dim : {64, 128}) {
    for (const int32_t group : {1, 2, 4}) {
      Case c;
      c.dim = dim;
      c.kv_heads = 8;
      c.q_heads = 8 * group;
      c.rows = {{1300, 1300}, {700, 1111}, {130, 130}};
      SCOPED_TRACE(c.text());
      begin_checked(c);
      const Work work = expect_same(last_queries(2000), 0);
      int32_t tiles = 0;
      for (const Row& row : c.rows) {
        tiles += ceil_div(row.queries * group, 128);
      }
      if (is_hopper() && !is_f8(GetParam())) {
        EXPECT_EQ(work.prompt_tiles, tiles) << "tiles of 128: the kernel with wgmma";
      }
      for (const Span& span : last_queries(1100)) {
        expect_same({span}, 0);
      }
      for (const int32_t chunk : {30, 129, 512, 600, 1024}) {
        for (int32_t first = 0; first < 1300; first += chunk) {
          expect_same({{0, first, std::min(chunk, 1300 - first)}}, 0);
        }
      }
      for (const int32_t before : {0, 1, 44, 45, 276, 500}) {
        expect_all_decode(last_queries(1, before), 1);
        expect_all_decode(last_queries(3, before), 3);
      }
      // Decode rows beside a large prompt.
      std::vector<Span> mixed = last_queries();
      mixed.push_back({0, 100, 1200});
      expect_same(mixed, static_cast<int32_t>(mixed.size()) - 1);
      expect_same(mixed, 0);
    }
  }
}

// Few prompts with many keys, whose items the kernel with wgmma splits by parts.
TEST_P(AttentionInvarianceTest, SplitPrompts) {
  struct Prompts {
    std::vector<Row> rows;
    int32_t window = 0;
  };
  for (const int32_t dim : {64, 128}) {
    for (const Prompts& prompts : {Prompts{{{128, 4200}}},
                                   Prompts{{{30, 9000}}},
                                   Prompts{{{300, 2500}, {64, 1000}, {5, 5}}},
                                   Prompts{{{150, 17'000}}},
                                   Prompts{{{200, 5000}}, 1600}}) {
      Case c;
      c.dim = dim;
      c.kv_heads = 8;
      c.q_heads = 16;
      c.sinks = prompts.window > 0;
      c.window = prompts.window;
      c.rows = prompts.rows;
      SCOPED_TRACE(c.text());
      begin_checked(c);
      std::vector<Span> all;
      int32_t tiles = 0;
      for (size_t r = 0; r < c.rows.size(); ++r) {
        all.push_back({r, 0, c.rows[r].queries});
        tiles += ceil_div(c.rows[r].queries * 2, 128);
      }
      for (int i = 0; i < 3; ++i) {
        const Work work = expect_same(all, 0);
        if (is_hopper() && !is_f8(GetParam())) {
          EXPECT_EQ(work.prompt_tiles, tiles) << "tiles of 128: the kernel with wgmma";
        }
      }
      expect_all_decode(last_queries(), 1);
      for (const int32_t chunk : {64, 100, 128}) {
        expect_same(last_queries(chunk), 0);
      }
      std::vector<Span> mixed = last_queries();
      mixed.push_back({0, 0, c.rows[0].queries});
      expect_same(mixed, static_cast<int32_t>(mixed.size()) - 1);
    }
  }
}

TEST_P(AttentionInvarianceTest, WindowsSinksAndSoftCaps) {
  for (const int32_t window : {0, 1, 63, 64, 65, 300, 1000}) {
    for (const bool odd : {false, true}) {
      Case c;
      c.q_heads = 16;
      c.kv_heads = 8;
      c.dim = window % 2 == 1 ? head_dims().back() : c.dim;
      c.window = window;
      c.sinks = odd;
      c.soft_cap = odd ? 15.0F : 0.0F;
      c.rows = {{700, 1433}, {500, 500}, {40, 257}, {3, 1025}, {1, 1}};
      SCOPED_TRACE(c.text());
      begin_checked(c);
      expect_same_everywhere({3});
      expect_same(last_queries(650), 0);
      for (int32_t before = 0; before < 500; before += 37) {
        expect_all_decode(last_queries(2, before), 2);
      }
    }
  }
}

TEST_P(AttentionInvarianceTest, BlockSizesAndLayouts) {
  Case c;
  c.shuffled = false;  // so that every layout gets the same random numbers
  c.rows = {{100, 900}, {70, 300}, {1, 64}, {5, 1300}};
  begin(c);
  const std::vector<uint16_t> first = results();
  for (const bool nhd : {false, true}) {
    for (const bool apart : {false, true}) {
      for (const int32_t block_size : {16, 32, 48, 64, 128, 256}) {
        Case other = c;
        other.nhd = nhd;
        other.apart = apart;
        other.block_size = block_size;
        SCOPED_TRACE(other.text());
        begin_checked(other);
        EXPECT_TRUE(results() == first);
        expect_same_everywhere({4});
      }
    }
  }
}

TEST_P(AttentionInvarianceTest, NotCausal) {
  Case c;
  c.causal = false;
  c.q_heads = 16;
  c.kv_heads = 8;
  c.rows = {{1200, 1300}, {1, 700}, {1, 64}, {1, 513}};
  begin_checked(c);
  // A decode row of one query sees all keys of its row either way.
  expect_all_decode({{1, 0, 1}, {2, 0, 1}, {3, 0, 1}}, 1);
  expect_same({{0, 0, 1200}}, 0);
}

}  // namespace
}  // namespace warprow
