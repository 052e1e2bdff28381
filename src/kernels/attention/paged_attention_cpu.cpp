// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention.h"

#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/attention/paged_attention_loops.h"

#include <algorithm>

namespace warprow {

size_t paged_attention_scratch_bytes(const KvLayerView& kv,
                                     int32_t num_q_heads,
                                     int32_t max_rows,
                                     int32_t num_workers) {
  const int32_t group = num_q_heads / kv.num_kv_heads;
  const int64_t items = round_up<int64_t>(max_rows + 1, cpu::kRowPad);
  const int64_t per_worker = round_up<int64_t>(
      cpu::attention_scratch_floats(group, kv.head_dim_k, kv.head_dim_v), cpu::kRowPad);
  return static_cast<size_t>(items + per_worker * num_workers + cpu::kRowPad) * sizeof(float);
}

namespace cpu {
namespace {

using TileFunction = void (*)(const AttentionTile&);

// The launched command: finds the work, deals it out.
struct PagedAttention {
  PagedAttentionArgs args;
  TileFunction run_tile;

  [[nodiscard]] int32_t group() const { return args.num_q_heads / args.kv.num_kv_heads; }
  [[nodiscard]] int32_t num_rows() const { return static_cast<int32_t>(args.seq_lens.shape[0]); }

  // Query tiles before each batch row, as a prefix sum in scratch.
  int32_t count_tiles(int32_t* tiles_before) const {
    const int32_t per_tile = queries_per_tile(group());
    int32_t tiles = 0;
    for (int32_t r = 0; r < num_rows(); ++r) {
      tiles_before[r] = tiles;
      const int32_t queries = args.query_start_loc(r + 1) - args.query_start_loc(r);
      if (args.idx_mapping(r) >= 0 && args.seq_lens(r) > 0 && queries > 0) {
        tiles += ceil_div(queries, per_tile);
      }
    }
    tiles_before[num_rows()] = tiles;
    return tiles;
  }

  [[nodiscard]] AttentionTile make_item(int32_t row, int32_t tile, int32_t kv_head) const {
    const KvLayerView& kv = args.kv;
    const int32_t first = tile * queries_per_tile(group());
    const int32_t row_start = args.query_start_loc(row);
    const int32_t queries = args.query_start_loc(row + 1) - row_start;
    const int64_t token = row_start + first;
    const int64_t head = int64_t{kv_head} * group();
    const auto element = static_cast<int64_t>(dtype_bytes(kv.dtype));
    AttentionTile a{};
    a.q = args.q.f32().row(token) + head * kv.head_dim_k;
    a.q_stride = args.q.stride;
    a.out = args.out.f32().row(token) + head * kv.head_dim_v;
    a.out_stride = args.out.stride;
    a.lse = args.lse.empty() ? nullptr : args.lse.row(token) + head;
    a.lse_stride = args.lse.stride[0];
    a.sinks = args.sinks.empty() ? nullptr : args.sinks.data + head;
    a.blocks = args.block_table.row(args.idx_mapping(row));
    a.k = kv.k + kv_head * kv.head_stride * element;
    a.v = kv.v + kv_head * kv.head_stride * element;
    a.block_stride = kv.block_stride;
    a.token_stride = kv.token_stride;
    a.block_size = kv.block_size;
    a.group = group();
    a.head_dim_k = kv.head_dim_k;
    a.head_dim_v = kv.head_dim_v;
    a.num_queries = std::min(queries_per_tile(group()), queries - first);
    a.seq_len = args.seq_lens(row);
    a.first_position = a.seq_len - queries + first;
    a.window = args.window;
    a.scale = args.scale;
    a.soft_cap = args.soft_cap;
    a.causal = args.causal;
    a.bf16 = kv.dtype == DType::kBF16;
    return a;
  }

  void operator()(ComputePool& pool) const {
    const auto address = reinterpret_cast<uintptr_t>(args.scratch.data);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): rounding an address up
    auto* base = reinterpret_cast<float*>(round_up<uintptr_t>(address, kRowPad * sizeof(float)));
    const int64_t per_worker = round_up<int64_t>(
        attention_scratch_floats(group(), args.kv.head_dim_k, args.kv.head_dim_v), kRowPad);
    auto* tiles_before = reinterpret_cast<int32_t*>(base + per_worker * pool.num_workers());
    const int32_t heads = args.kv.num_kv_heads;
    const int64_t items = int64_t{count_tiles(tiles_before)} * heads;
    const int32_t* starts = tiles_before;
    const int32_t* ends = starts + num_rows() + 1;
    const auto item_at = [&](int64_t i) {
      const int64_t item =
          items - 1 - i;  // a row's last query tiles see the most keys, so they are taken first
      const auto tile = static_cast<int32_t>(item / heads);
      const auto row = static_cast<int32_t>(std::upper_bound(starts, ends, tile) - starts) - 1;
      return make_item(row, tile - starts[row], static_cast<int32_t>(item % heads));
    };
    const int64_t grain = std::clamp<int64_t>(items / (8 * pool.num_workers()), 1, 8);
    pool.parallel_for(items, grain, [&](int64_t begin, int64_t end, int32_t worker) {
      AttentionTile item = item_at(begin);
      for (int64_t i = begin; i < end; ++i) {
        AttentionTile next{};
        if (i + 1 < end) {
          next = item_at(i + 1);
          item.next = &next;
        }
        item.scratch = base + worker * per_worker;
        run_tile(item);
        item = next;
      }
    });
  }
};

}  // namespace

void paged_attention(Stream& stream, const PagedAttentionArgs& args) {
  const KvLayerView& kv = args.kv;
  const int64_t rows = args.seq_lens.shape[0];
  WR_CHECK(kv.dtype == DType::kF32 || kv.dtype == DType::kBF16, "KV {}", dtype_name(kv.dtype));
  WR_CHECK_GT(kv.num_kv_heads, 0);
  WR_CHECK_EQ(args.num_q_heads % kv.num_kv_heads, 0);
  WR_CHECK_EQ(args.q.shape[1], int64_t{args.num_q_heads} * kv.head_dim_k);
  WR_CHECK_EQ(args.out.shape[1], int64_t{args.num_q_heads} * kv.head_dim_v);
  WR_CHECK_EQ(args.out.shape[0], args.q.shape[0]);
  WR_CHECK_EQ(args.query_start_loc.shape[0], rows + 1);
  WR_CHECK_EQ(args.idx_mapping.shape[0], rows);
  WR_CHECK(args.sinks.empty() || args.sinks.shape[0] == args.num_q_heads);
  WR_CHECK(args.lse.empty() || args.lse.shape[0] == args.q.shape[0]);
  WR_CHECK_GE(
      args.scratch.shape[0],
      static_cast<int64_t>(paged_attention_scratch_bytes(
          kv, args.num_q_heads, static_cast<int32_t>(rows), stream.device().facts().num_threads)));
  as_cpu(stream).launch("paged_attention", PagedAttention{args, WR_ISA_PICK(paged_attention_tile)});
}

}  // namespace cpu
}  // namespace warprow
