// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper that also norms, rotates and writes the cache has the bits of rope_kv_write and attention in turn, in
// its output and in the cache.
#include "kernels/attention/native/scheduled_attention.h"
#include "kernels/rope/rope_kv_write.h"
#include "tests/cuda/attention_fixture.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace warprow {
namespace {

using Case = testing::AttentionCase;

class DecodeRopeCuda : public testing::AttentionCudaTest {
 protected:
  struct Rope {
    int32_t rot_dim;
    bool q_norm = false;
    bool k_norm = false;
    bool v_norm = false;
    bool own_kv = true;
  };
  struct Outcome {
    std::vector<uint16_t> out;
    std::vector<float> lse;
    std::vector<std::byte> cache;
  };

  void SetUp() override {
    AttentionCudaTest::SetUp();
    if (!IsSkipped() && gpu().facts().compute_capability != 90) {
      GTEST_SKIP() << "this kernel needs a GPU of compute capability 9.0";
    }
  }

  void expect_same(Case c, const Rope& rope) {
    c.batch_invariant = true;
    c.num_decode_rows = static_cast<int32_t>(c.rows.size());
    SCOPED_TRACE(c.text() + ", rotates " + std::to_string(rope.rot_dim));
    arena().reset();
    build(c, 3);
    const int64_t cols = batch_.q_stride;
    const auto toks = static_cast<size_t>(num_toks());
    qkv_ = to_bf16(testing::normals(toks * static_cast<size_t>(cols), 4));
    const std::vector<std::byte> cache = batch_.stored_cache();
    const Outcome apart = run(rope, cache, false, false);
    for (const bool settled : {false, true}) {
      const Outcome together = run(rope, cache, true, settled);
      EXPECT_TRUE(together.cache == apart.cache) << "cache, settled " << settled;
      EXPECT_TRUE(together.out == apart.out) << "output, settled " << settled;
      EXPECT_TRUE(together.lse == apart.lse) << "lse, settled " << settled;
    }
    EXPECT_EQ(apart.cache == cache, !rope.own_kv);
  }

 private:
  // NaN of outputs that are not written compare as equal bits.
  static std::vector<float> without_nan(std::vector<float> values) {
    std::replace_if(values.begin(), values.end(), [](float v) { return v != v; }, -1e30F);
    return values;
  }

  Outcome run(const Rope& rope, const std::vector<std::byte>& cache, bool together, bool settled) {
    const Case& c = batch_.c;
    const auto toks = static_cast<size_t>(num_toks());
    device_.cache = upload(cache);
    cuda::ScheduledAttentionArgs args{cuda_args(), c.window};
    const ActView qkv(DType::kBF16, upload(qkv_), num_toks(), batch_.q_stride, batch_.q_stride);
    args.q = qkv.columns(0, batch_.q_cols());
    const auto halves = static_cast<size_t>(rope.rot_dim / 2);
    std::vector<float> angles = testing::normals(std::max<size_t>(toks * halves, 1), 5);
    const auto table = [&](float (*f)(float)) {
      std::vector<float> values(angles.size());
      std::transform(angles.begin(), angles.end(), values.begin(), f);
      return make_view<const float>(upload(values), num_toks(), rope.rot_dim / 2);
    };
    const auto norm = [&](bool has, uint32_t seed) {
      return has ? make_view<const float>(
                       upload(testing::normals(static_cast<size_t>(c.dim), seed)), c.dim)
                 : View<const float, 1>{};
    };
    RopeKvWriteArgs written;
    written.qkv = qkv;
    written.cos = table([](float a) { return std::cos(a); });
    written.sin = table([](float a) { return std::sin(a); });
    written.slot_mapping = make_view<const int64_t>(upload(slots()), num_toks());
    written.q_norm = norm(rope.q_norm, 6);
    written.k_norm = norm(rope.k_norm, 7);
    written.v_norm = norm(rope.v_norm, 8);
    written.kv = args.kv;
    written.num_q_heads = c.q_heads;
    written.rot_dim = rope.rot_dim;
    if (!rope.own_kv) {
      written.kv.num_kv_heads = 0;
      written.qkv = args_queries(qkv);
    }
    EXPECT_TRUE(cuda::attention_takes_rope(gpu().facts(), args, written));
    cuda::attention_schedule(stream(), args);
    if (together) {
      args.rope = &written;
      args.settled = settled;
      if (settled) {
        stream().synchronize();
      }
    } else {
      cuda::rope_kv_write(stream(), written);
    }
    cuda::attention_forward(stream(), args);
    Outcome got;
    got.out = to_bf16(without_nan(download_act(args.out)));
    got.lse = without_nan(download(args.lse.data, toks * static_cast<size_t>(c.q_heads)));
    got.cache = download(device_.cache, cache.size());
    return got;
  }

  ActView args_queries(const ActView& qkv) const { return qkv.columns(0, batch_.q_cols()); }

  // The slots of the step's tokens.
  [[nodiscard]] std::vector<int64_t> slots() const {
    const Case& c = batch_.c;
    std::vector<int64_t> out(static_cast<size_t>(num_toks()), -1);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      for (int32_t i = 0; i < c.rows[r].queries && batch_.idx_mapping[r] >= 0; ++i) {
        const int32_t key = c.rows[r].len - c.rows[r].queries + i;
        const int64_t cell =
            int64_t{batch_.idx_mapping[r]} * batch_.max_blocks + key / c.block_size;
        out[static_cast<size_t>(batch_.query_start_loc[r] + i)] =
            int64_t{batch_.table[static_cast<size_t>(cell)]} * c.block_size + key % c.block_size;
      }
    }
    return out;
  }

  std::vector<uint16_t> qkv_;
};

std::vector<testing::AttentionRow> rows_of_one(int count) {
  std::vector<testing::AttentionRow> rows;
  for (int i = 0; i < count; ++i) {
    rows.push_back({1, i % 11 == 7 ? 0 : 1 + i * 37 % 300});
  }
  return rows;
}

TEST_F(DecodeRopeCuda, OneQueryARow) {
  for (const int32_t dim : {64, 128, 256}) {
    for (const auto& [q_heads, kv_heads] : {std::pair{4, 4}, {8, 2}, {16, 1}, {40, 8}}) {
      for (const int count :
           {1, 8, dim == 256 ? 95 : 127}) {  // fewer than 1,024 pieces, and up to 6 a CTA
        Case c;
        c.q_heads = q_heads;
        c.kv_heads = kv_heads;
        c.dim = dim;
        c.rows = rows_of_one(count);
        expect_same(c, {dim, dim == 128, dim == 128});
      }
    }
  }
}

TEST_F(DecodeRopeCuda, SeveralQueriesARow) {
  for (const int32_t queries : {2, 3, 6}) {
    Case c;
    c.q_heads = 8;
    c.kv_heads = 2;
    c.decode_len = queries;
    for (int i = 0; i < 9; ++i) {
      c.rows.push_back({1 + i % queries, 6 + i * 61});
    }
    c.rows.push_back({queries, queries});  // no older keys
    expect_same(c, {128, true, true});
  }
}

TEST_F(DecodeRopeCuda, NormsRotationsAndLayouts) {
  Case c;
  c.rows = rows_of_one(20);
  c.rows.push_back({1, 5000});
  for (const Rope& rope :
       {Rope{0}, Rope{64}, Rope{128, true}, Rope{128, false, true}, Rope{32, true, true, true}}) {
    expect_same(c, rope);
  }
  expect_same(c, {128, true, false, false, false});
  c.block_size = 48;
  c.nhd = true;
  expect_same(c, {128, true, true});
  c.apart = true;
  c.num_layers = 3;
  c.window = 100;
  c.sinks = true;
  c.soft_cap = 20.0F;
  expect_same(c, {128});
}

// Batches that other kernels take in part, and forms that the kernel does not know.
TEST_F(DecodeRopeCuda, OthersAreRefused) {
  Case c;
  c.batch_invariant = true;
  c.rows = {{1, 10}, {70, 90}};
  c.num_decode_rows = 1;
  arena().reset();
  build(c, 3);
  const auto takes = [&](auto change) {
    cuda::ScheduledAttentionArgs args{cuda_args(), 0};
    RopeKvWriteArgs rope;
    rope.qkv = ActView(DType::kBF16, device_.q, num_toks(), batch_.q_stride, batch_.q_stride);
    rope.kv = args.kv;
    rope.num_q_heads = c.q_heads;
    change(args, rope);
    return cuda::attention_takes_rope(gpu().facts(), args, rope);
  };
  EXPECT_FALSE(takes([](auto&, auto&) {}));
  const auto decode_alone = [](auto& args) { args.seq_lens.shape[0] = 1; };
  EXPECT_TRUE(takes([&](auto& args, auto&) { decode_alone(args); }));
  EXPECT_FALSE(takes([&](auto& args, auto& rope) {
    decode_alone(args);
    rope.interleaved = true;
  }));
  EXPECT_FALSE(takes([&](auto& args, auto&) {
    decode_alone(args);
    args.batch_invariant = false;
  }));
  EXPECT_FALSE(takes([&](auto& args, auto&) {
    decode_alone(args);
    args.kv.dtype = DType::kF8E4M3;
  }));
  EXPECT_FALSE(takes([&](auto& args, auto&) {  // more pieces than it is faster for
    args.seq_lens.shape[0] = args.num_decode_rows = 1024;
  }));
}

}  // namespace
}  // namespace warprow
