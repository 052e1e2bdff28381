// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention.h"

#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/attention/cpu/kind_of_cache.h"
#include "kernels/attention/cpu/paged_attention_loops.h"

#include <algorithm>
#include <atomic>

namespace warprow {

namespace cpu {
namespace {

// Rows with few queries and many keys are split into parts, so that one long row does not keep one core busy
// while the others idle. This is the number of states in scratch for them, per worker; a state holds one
// query's heads of a group.
constexpr int32_t kStatesPerWorker = 64;
// A row is split if its keys exceed this fraction (1 / kItemsPerWorker) of a worker's share of the keys.
constexpr int32_t kItemsPerWorker = 8;

// One part of a row, for all its KV heads.
struct Piece {
  int32_t row;
  int32_t begin;  // positions
  int32_t end;
  int32_t part;  // index of the part in the row
  int32_t num_parts;
  int32_t first_count;  // index of the row's first counter; it has one for each KV head
  int64_t first_state;  // offset of the row's states in floats: [kv head, part]
};

// Byte offsets into the caller's scratch, from an aligned start.
struct ScratchLayout {
  static constexpr int64_t kAlign = kRowPad * sizeof(float);
  int64_t states = 0;
  int64_t pieces = 0;
  int64_t counts = 0;
  int64_t tiles_before = 0;
  int64_t bytes = 0;
  int64_t per_worker = 0;  // floats
};

ScratchLayout scratch_layout(const KvLayerView& kv, int32_t group, int64_t rows, int32_t workers) {
  const int64_t most_states = int64_t{kStatesPerWorker} * workers;
  ScratchLayout layout;
  int64_t at = 0;
  const auto put = [&at](int64_t count, size_t size) {
    at += round_up<int64_t>(count * static_cast<int64_t>(size), ScratchLayout::kAlign);
    return at;
  };
  layout.per_worker =
      round_up<int64_t>(attention_scratch_floats(group, kv.head_dim_k, kv.head_dim_v), kRowPad);
  layout.states = put(layout.per_worker * workers, sizeof(float));
  layout.pieces = put(most_states * attention_state_floats(group, kv.head_dim_v), sizeof(float));
  layout.counts = put(most_states, sizeof(Piece));
  layout.tiles_before = put(most_states, sizeof(int32_t));
  layout.bytes = put(rows + 1, sizeof(int32_t)) + ScratchLayout::kAlign;
  return layout;
}

struct Scratch {
  float* of_workers;
  float* states;
  Piece* pieces;
  int32_t* counts;  // finished pieces, by split row and KV head
  int32_t* tiles_before;
  int64_t per_worker;  // floats
};

Scratch cut_scratch(std::byte* scratch, const ScratchLayout& layout) {
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  std::byte* base = scratch + (round_up<uintptr_t>(address, ScratchLayout::kAlign) - address);
  return {reinterpret_cast<float*>(base),
          reinterpret_cast<float*>(base + layout.states),
          reinterpret_cast<Piece*>(base + layout.pieces),
          reinterpret_cast<int32_t*>(base + layout.counts),
          reinterpret_cast<int32_t*>(base + layout.tiles_before),
          layout.per_worker};
}

}  // namespace
}  // namespace cpu

size_t paged_attention_scratch_bytes(const KvLayerView& kv,
                                     int32_t num_q_heads,
                                     int32_t max_rows,
                                     int32_t num_workers) {
  const int32_t group = num_q_heads / kv.num_kv_heads;
  return static_cast<size_t>(cpu::scratch_layout(kv, group, max_rows, num_workers).bytes);
}

namespace cpu {
namespace {

using TileFunction = void (*)(const AttentionTile&);
using MergeFunction = void (*)(const AttentionTile&, const float*, int32_t);

// The launched command: plans the items and runs them in parallel.
struct PagedAttention {
  PagedAttentionArgs args;
  TileFunction run_tile;
  MergeFunction merge;
  int32_t query_lines = kQueryLines;

  [[nodiscard]] int32_t group() const { return args.num_q_heads / args.kv.num_kv_heads; }
  [[nodiscard]] int32_t num_rows() const { return static_cast<int32_t>(args.seq_lens.shape[0]); }
  [[nodiscard]] int32_t num_queries(int32_t row) const {
    return args.query_start_loc(row + 1) - args.query_start_loc(row);
  }
  [[nodiscard]] int32_t queries_of_tile() const { return queries_per_tile(group(), query_lines); }
  // Query tiles of a row; 0 for padding.
  [[nodiscard]] int32_t num_tiles(int32_t row) const {
    const bool padding = args.idx_mapping(row) < 0 || args.seq_lens(row) <= 0;
    return padding ? 0 : ceil_div(std::max(num_queries(row), 0), queries_of_tile());
  }
  // First key that any of the row's queries sees, and the number of keys from there on.
  [[nodiscard]] int32_t first_key(int32_t row) const {
    const int32_t first_position = args.seq_lens(row) - num_queries(row);
    return args.causal && args.window > 0 ? std::max(0, first_position - args.window + 1) : 0;
  }
  [[nodiscard]] int32_t num_keys(int32_t row) const { return args.seq_lens(row) - first_key(row); }

  // Writes the parts of split rows to s.pieces, and for the other rows the prefix sum of their query tiles to
  // s.tiles_before. Returns the number of pieces.
  int32_t plan(const Scratch& s, int32_t num_workers) const {
    const int32_t heads = args.kv.num_kv_heads;
    int64_t work = 0;  // keys of all items
    for (int32_t r = 0; r < num_rows(); ++r) {
      const int32_t tiles = num_tiles(r);
      work += tiles > 0 ? int64_t{tiles} * num_keys(r) * heads : 0;
    }
    Cuts cuts{.least_keys = num_workers > 1 ? work / (kItemsPerWorker * num_workers) : work,
              .states_left = int64_t{kStatesPerWorker} * num_workers};
    int32_t tiles = 0;
    for (int32_t r = 0; r < num_rows(); ++r) {
      s.tiles_before[r] = tiles;
      const int32_t of_row = num_tiles(r);
      if (of_row != 1 || !cut_row(s, r, cuts)) {
        tiles += of_row;
      }
    }
    s.tiles_before[num_rows()] = tiles;
    return cuts.num_pieces;
  }

  struct Cuts {
    int64_t least_keys;  // rows with at most this many keys are not split
    int64_t states_left;
    int32_t num_pieces = 0;
    int32_t num_counts = 0;
    int64_t num_floats = 0;
  };
  // Splits the row into pieces if that pays; returns whether it did. Its queries must fit one tile.
  bool cut_row(const Scratch& s, int32_t row, Cuts& cuts) const {
    const int32_t heads = args.kv.num_kv_heads;
    const int32_t begin = first_key(row);
    const int32_t end = args.seq_lens(row);
    if (end - begin <= cuts.least_keys || part_end(begin) >= end) {
      return false;
    }
    int32_t parts = 0;
    for (int32_t at = begin; at < end; at = part_end(at)) {
      ++parts;
    }
    const int64_t states = int64_t{parts} * heads * num_queries(row);
    if (states > cuts.states_left) {
      return false;
    }
    int32_t part = 0;
    for (int32_t at = begin; at < end; at = part_end(at), ++part) {
      s.pieces[cuts.num_pieces++] = {
          row, at, part_end(at), part, parts, cuts.num_counts, cuts.num_floats};
    }
    std::fill_n(s.counts + cuts.num_counts, heads, 0);
    cuts.num_counts += heads;
    cuts.num_floats += parts * heads * state_floats(row);
    cuts.states_left -= states;
    return true;
  }
  [[nodiscard]] int64_t state_floats(int32_t row) const {
    return attention_state_floats(int64_t{num_queries(row)} * group(), args.kv.head_dim_v);
  }

  [[nodiscard]] AttentionTile make_item(int32_t row, int32_t tile, int32_t kv_head) const {
    const KvLayerView& kv = args.kv;
    const int32_t first = tile * queries_of_tile();
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
    a.blocks = args.block_table.of_row(args.idx_mapping(row));
    a.k = kv.k + kv_head * kv.head_stride * element;
    a.v = kv.v + kv_head * kv.head_stride * element;
    a.block_stride = kv.block_stride;
    a.token_stride = kv.token_stride;
    a.block_size = kv.block_size;
    a.group = group();
    a.head_dim_k = kv.head_dim_k;
    a.head_dim_v = kv.head_dim_v;
    a.num_queries = std::min(queries_of_tile(), queries - first);
    a.seq_len = args.seq_lens(row);
    a.first_position = a.seq_len - queries + first;
    a.window = args.window;
    a.scale = args.scale;
    a.v_scale = 1.0F;
    if (is_f8(kv.dtype)) {
      a.scale *= kv.k_scales[kv_head];
      a.v_scale = kv.v_scales[kv_head];
    }
    a.soft_cap = args.soft_cap;
    a.causal = args.causal;
    a.kind = cache_kind(kv.dtype);
    return a;
  }

  struct Item {
    AttentionTile tile;
    const Piece* piece = nullptr;  // null: all parts
    int32_t kv_head = 0;
  };

  // Items of pieces come first. The last part and the last query tile of a row come before its earlier ones, because they
  // are the longest, but without causality all query tiles are.
  [[nodiscard]] Item item_at(const Scratch& s, int32_t num_pieces, int64_t i) const {
    const int32_t heads = args.kv.num_kv_heads;
    Item item;
    if (i < int64_t{num_pieces} * heads) {
      item.piece = s.pieces + (num_pieces - 1 - i / heads);
      item.kv_head = static_cast<int32_t>(i % heads);
      item.tile = make_item(item.piece->row, 0, item.kv_head);
      item.tile.part_begin = item.piece->begin;
      item.tile.part_end = item.piece->end;
      item.tile.state = states_of(s, item) + item.piece->part * state_floats(item.piece->row);
      return item;
    }
    const int32_t* starts = s.tiles_before;
    const int32_t* ends = starts + num_rows() + 1;
    const int64_t from_first = i - int64_t{num_pieces} * heads;
    const int64_t at =
        args.causal ? int64_t{starts[num_rows()]} * heads - 1 - from_first : from_first;
    const auto tile = static_cast<int32_t>(at / heads);
    const auto row = static_cast<int32_t>(std::upper_bound(starts, ends, tile) - starts) - 1;
    item.kv_head = static_cast<int32_t>(at % heads);
    item.tile = make_item(row, tile - starts[row], item.kv_head);
    return item;
  }
  // The states of a split row and KV head.
  [[nodiscard]] float* states_of(const Scratch& s, const Item& item) const {
    const Piece& p = *item.piece;
    return s.states + p.first_state + item.kv_head * p.num_parts * state_floats(p.row);
  }

  // The thread that finishes the last part of a row and KV head merges the parts.
  void end_item(const Scratch& s, Item& item) const {
    if (item.piece == nullptr) {
      return;
    }
    const std::atomic_ref<int32_t> done(s.counts[item.piece->first_count + item.kv_head]);
    if (done.fetch_add(1, std::memory_order_acq_rel) == item.piece->num_parts - 1) {
      item.tile.state = nullptr;
      merge(item.tile, states_of(s, item), item.piece->num_parts);
    }
  }

  void operator()(ComputePool& pool) const {
    const int32_t workers = pool.num_workers();
    const Scratch s =
        cut_scratch(args.scratch.data, scratch_layout(args.kv, group(), num_rows(), workers));
    const int32_t num_pieces = plan(s, workers);
    const int64_t items = int64_t{num_pieces + s.tiles_before[num_rows()]} * args.kv.num_kv_heads;
    const int64_t grain = std::clamp<int64_t>(items / (kItemsPerWorker * workers), 1, 8);
    const auto run = [&](int64_t begin, int64_t end, int32_t worker) {
      Item item = item_at(s, num_pieces, begin);
      for (int64_t i = begin; i < end; ++i) {
        Item next;
        if (i + 1 < end) {
          next = item_at(s, num_pieces, i + 1);
          item.tile.next = &next.tile;
        }
        item.tile.scratch = s.of_workers + worker * s.per_worker;
        run_tile(item.tile);
        end_item(s, item);
        item = next;
      }
    };
    parallel_for_with_affinity(pool, items, grain, run, args.causal);
  }
};

}  // namespace

void paged_attention(Stream& stream, const PagedAttentionArgs& args) {
  const KvLayerView& kv = args.kv;
  const int64_t rows = args.seq_lens.shape[0];
  WR_CHECK(!is_f8(kv.dtype) || (kv.k_scales != nullptr && kv.v_scales != nullptr));
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
  PagedAttention run{args, WR_ISA_PICK(paged_attention_tile), WR_ISA_PICK(paged_attention_merge)};
#if defined(__x86_64__)
  if (kv.dtype == DType::kBF16 && cpu_isa() >= CpuIsa::kAmx) {
    run.run_tile = paged_attention_tile_amx;
    run.merge = paged_attention_merge_amx;
    run.query_lines = kAmxQueryLines;
  } else if (kv.dtype == DType::kBF16 && cpu_isa() >= CpuIsa::kAvx512Bf16) {
    run.run_tile = paged_attention_tile_avx512bf16;
    run.merge = paged_attention_merge_avx512bf16;
  }
#endif
  as_cpu(stream).launch("paged_attention", run);
}

}  // namespace cpu
}  // namespace warprow
