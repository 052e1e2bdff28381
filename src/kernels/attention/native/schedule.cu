// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native/params.h"
#include "kernels/cuda/reduce.cuh"

// Formula: splits a step's decode rows into pieces of work for the decode grid, and numbers the query tiles
//   of the other rows.
// Shapes: NativeScratch; rows [0, num_decode_rows) have 0 to decode_len query tokens, the others any number.
// Mapping: CTA 0 for decode, CTA 1 for prefill; threads over chunks of decode rows, and over prefill rows.
// Bytes moved: a few per row and piece; a few microseconds, once per step and KV group.
// Numerics: integers. The splits depend on the lengths of the whole batch, and so does the order of a decode
//   row's sums; in parts (parts.h) a row is split only at the borders of parts, which keeps the order.
// Preconditions: at most kMaxScheduledRows rows, and as many chunks of decode rows.
// Origin: own design; longest pieces first as in list scheduling (Graham, 1969).
namespace warprow::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kMaxPromptParts <= kThreads);

// The sum of `value` over the threads before this one.
__device__ int32_t sum_before(int32_t value) {
  __shared__ int32_t warp_sums[32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int32_t sum = sum_up_to_lane(value, lane);
  if (lane == 31) {
    warp_sums[warp] = sum;
  }
  __syncthreads();
  const int32_t before = lane < warp ? warp_sums[lane] : 0;
  return __reduce_add_sync(0xffffffffU, before) + sum - value;
}

// Exclusive prefix sums: before[i] = the sum of count_of(j) over j < i; before[n] = the total. The kernel runs once a step, so
// its instructions come from L2 or memory: loops are kept short rather than unrolled.
template <typename CountOf>
__device__ void prefix_sums(int32_t* before, int32_t n, CountOf count_of) {
  int32_t mine = 0;
  const int32_t per_thread = (n + kThreads - 1) / kThreads;
  const int32_t first = min(static_cast<int32_t>(threadIdx.x) * per_thread, n);
  const int32_t last = min(first + per_thread, n);
#pragma unroll 1
  for (int32_t i = first; i < last; ++i) {
    const int32_t count = count_of(i);
    before[i] = count;
    mine += count;
  }
  int32_t at = sum_before(mine);
#pragma unroll 1
  for (int32_t i = first; i < last; ++i) {
    const int32_t count = before[i];
    before[i] = at;
    at += count;
  }
  if (threadIdx.x == kThreads - 1) {
    before[n] = at;
  }
  __syncthreads();
}

// How finely chunks are split: into pieces of at most `most` tiles, as long as kMostPieces allows.
struct Cutting {
  static constexpr int32_t kMostPieces = 64;
  int32_t most;

  // A piece has whole units: tiles or, in parts, parts.
  [[nodiscard]] __device__ int32_t pieces(int32_t tiles, int32_t units) const {
    return min(min(kMostPieces, units), (tiles + most - 1) / most);
  }
};

// Cost of a split, in units of the time that a CTA takes for a tile. Pieces run in rounds over the CTAs. Each
// piece costs an exchange between its warps, each part also its write and its arrival, and the last merge
// costs kGather.
struct CutCost {
  static constexpr int32_t kWhole = 1;
  static constexpr int32_t kPart = 3;
  static constexpr int32_t kGather = 12;
  int32_t pieces = 0;
  int32_t longest = 0;
  int32_t parts = 0;
  int32_t tiles = 0;

  __device__ void add_chunk(const Cutting& cutting, int32_t chunk_tiles, int32_t units) {
    const int32_t cut = cutting.pieces(chunk_tiles, units);
    pieces += cut;
    tiles += chunk_tiles;
    if (cut > 0) {
      parts += cut > 1 ? cut : 0;
      const int32_t piece_tiles = (units + cut - 1) / cut * ((chunk_tiles + units - 1) / units);
      longest = max(longest, piece_tiles + (cut > 1 ? kPart : kWhole));
    }
  }
  __device__ void add_lanes() {
    for (int d = 16; d > 0; d /= 2) {
      pieces += __shfl_xor_sync(0xffffffffU, pieces, d);
      parts += __shfl_xor_sync(0xffffffffU, parts, d);
      tiles += __shfl_xor_sync(0xffffffffU, tiles, d);
      longest = max(longest, __shfl_xor_sync(0xffffffffU, longest, d));
    }
  }
  [[nodiscard]] __device__ float total(int32_t num_heads, int32_t num_blocks) const {
    const auto rounds = static_cast<float>((pieces * num_heads + num_blocks - 1) / num_blocks);
    const float mean = static_cast<float>(tiles + kPart * parts + kWhole * (pieces - parts)) /
                       static_cast<float>(max(pieces, 1));
    return (rounds - 1.0F) * mean + static_cast<float>(longest + (parts > 0 ? kGather : 0));
  }
};

__device__ int32_t num_chunks(const ScheduleParams& p) {
  return p.num_decode_rows * p.chunks.chunks;
}

// The queries of one chunk of a decode row.
struct Chunk {
  int32_t row;
  int32_t first_tok, num_toks;
  int32_t seq_len;  // DecodeItem
  int32_t num_old_keys;

  __device__ Chunk(const ScheduleParams& p, int32_t c) : row(c / p.chunks.chunks) {
    const int32_t row_first = p.decode_len == 1 ? row : p.query_start_loc[row];
    const int32_t row_toks = p.decode_len == 1 ? 1 : p.query_start_loc[row + 1] - row_first;
    const int32_t before = c % p.chunks.chunks * p.chunks.queries;
    first_tok = row_first + before;
    num_toks = min(row_toks - before, p.chunks.queries);
    num_old_keys = p.seq_lens[row] - row_toks;
    seq_len = num_old_keys + before + num_toks;
  }
};

// Picks the cheapest of 32 splits; each warp computes the cost of one.
__device__ Cutting choose_cutting(const int32_t* tiles_before, const ScheduleParams& p) {
  __shared__ float costs[32];
  const int32_t n = num_chunks(p);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t share = tiles_before[n] * p.num_kv_heads / p.num_blocks;
  const auto cut = [&](int i) { return Cutting{max(4, share * 8 / (i + 4))}; };
  CutCost cost;
#pragma unroll 1
  for (int32_t c = lane; c < n; c += 32) {
    const int32_t tiles = tiles_before[c + 1] - tiles_before[c];
    // Counts parts as if the keys began at position 0. With a window the true position changes the number little.
    cost.add_chunk(cut(warp), tiles, p.in_parts ? num_parts(0, tiles * kDecodeTile) : tiles);
  }
  cost.add_lanes();
  if (lane == 0) {
    costs[warp] = cost.total(p.num_kv_heads, p.num_blocks);
  }
  __syncthreads();
  // The first of the cheapest.
  float least = costs[lane];
  int best = lane;
  for (int d = 16; d > 0; d /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, least, d);
    const int at = __shfl_xor_sync(0xffffffffU, best, d);
    if (other < least || (other == least && at < best)) {
      least = other;
      best = at;
    }
  }
  return cut(best);
}

// The first key of a chunk's tiles.
__device__ int32_t first_key(const Chunk& chunk, int32_t tiles) {
  return ((chunk.seq_len + kDecodeTile - 1) / kDecodeTile - tiles) * kDecodeTile;
}

__device__ void write_items(const ScheduleParams& p,
                            int32_t c,
                            DecodeItem* items,
                            int32_t tiles,
                            int32_t pieces,
                            int32_t partials,
                            int32_t first_part) {
  const Chunk chunk(p, c);
  DecodeItem item;
  item.chunk = c;
  item.table_begin = p.block_table.begin_of(p.idx_mapping[chunk.row]);
  item.first_tok = chunk.first_tok;
  item.num_toks = chunk.num_toks;
  item.seq_len = chunk.seq_len;
  item.num_old_keys = chunk.num_old_keys;
  item.num_parts = partials;
  item.first_part = first_part;
  const int32_t begin = first_key(chunk, tiles);
  if (p.in_parts) {
#pragma unroll 1
    for (int32_t i = 0; i < pieces; ++i) {
      const PartRun run = part_run(begin, chunk.seq_len, pieces, i);
      item.part = run.part;
      item.tile = run.begin / kDecodeTile;
      item.num_tiles = (run.end + kDecodeTile - 1) / kDecodeTile - item.tile;
      items[pieces - 1 - i] = item;  // the last parts are the longest
    }
    return;
  }
  const int32_t each = tiles / pieces;
  const int32_t longer = tiles - each * pieces;  // the first `longer` pieces have one tile more
#pragma unroll 1
  for (int32_t i = 0; i < pieces; ++i) {
    item.part = i;
    item.tile = begin / kDecodeTile + i * each + min(i, longer);
    item.num_tiles = each + (i < longer ? 1 : 0);
    items[i] = item;
  }
}

__device__ void schedule_decode(const ScheduleParams& p) {
  constexpr int32_t kWholeChunk = 1 << 16;
  __shared__ int32_t tiles_before[kMaxScheduledRows + 1];
  __shared__ int32_t partials_before[kMaxScheduledRows + 1];  // of chunks to be split
  // Items of split chunks, and kWholeChunk for each of the others.
  __shared__ int32_t items_before[kMaxScheduledRows + 1];
  __shared__ uint16_t parts_of[kMaxScheduledRows];
  const int32_t n = num_chunks(p);
  prefix_sums(tiles_before, n, [&](int32_t c) {
    const Chunk chunk(p, c);
    const int32_t tiles = p.idx_mapping[chunk.row] < 0
                              ? 0
                              : decode_tiles(chunk.seq_len, chunk.num_toks, p.window, p.in_parts);
    if (p.in_parts) {
      parts_of[c] = tiles == 0 ? 0 : num_parts(first_key(chunk, tiles), chunk.seq_len);
    }
    return tiles;
  });
  const Cutting cutting = choose_cutting(tiles_before, p);
  const auto tiles_of = [&](int32_t c) { return tiles_before[c + 1] - tiles_before[c]; };
  const auto units_of = [&](int32_t c) { return p.in_parts ? parts_of[c] : tiles_of(c); };
  prefix_sums(partials_before, n, [&](int32_t c) {
    const int32_t units = units_of(c);
    const int32_t pieces = cutting.pieces(tiles_of(c), units);
    return pieces <= 1 ? 0 : p.in_parts ? units : pieces;
  });
  const auto partials_of = [&](int32_t c) { return partials_before[c + 1] - partials_before[c]; };
  // A chunk stays whole if scratch has no room for its partial sums.
  const auto is_split = [&](int32_t c) {
    return partials_of(c) > 0 && partials_before[c + 1] <= kMaxParts / p.num_kv_heads;
  };
  const auto pieces_of = [&](int32_t c) {
    return is_split(c) ? cutting.pieces(tiles_of(c), units_of(c)) : 1;
  };
  prefix_sums(items_before, n, [&](int32_t c) {
    return tiles_of(c) == 0 ? 0 : is_split(c) ? pieces_of(c) : kWholeChunk;
  });
  // Split chunks come first because their pieces are the longer ones; so the CTAs finish at about the same time.
  const int32_t num_split = items_before[n] % kWholeChunk;
#pragma unroll 1
  for (int32_t c = threadIdx.x; c < n; c += kThreads) {
    if (tiles_of(c) > 0) {
      const bool split = is_split(c);
      const int32_t first =
          split ? items_before[c] % kWholeChunk : num_split + items_before[c] / kWholeChunk;
      write_items(p,
                  c,
                  p.scratch.items + first,
                  tiles_of(c),
                  pieces_of(c),
                  split ? partials_of(c) : 1,
                  partials_before[c]);
    }
  }
#pragma unroll 1
  for (int32_t i = threadIdx.x; i < n * p.num_kv_heads * kDecodeWarps; i += kThreads) {
    p.scratch.arrivals[i] = 0;
  }
  if (threadIdx.x == 0) {
    p.scratch.counts->num_pieces = (num_split + items_before[n] / kWholeChunk) * p.num_kv_heads;
    p.scratch.counts->taken = 0;
  }
}

__device__ void schedule_prefill(const ScheduleParams& p) {
  const int32_t first = p.num_decode_rows;
  if (threadIdx.x == 0) {
    p.scratch.counts->prefill_taken = 0;
  }
  if (static_cast<int32_t>(threadIdx.x) < kMaxPromptParts) {
    p.scratch.prompt_arrivals[threadIdx.x] = 0;
  }
  prefix_sums(p.scratch.prefill_tiles, p.num_rows - first, [&](int32_t i) {
    const int32_t r = first + i;
    const int32_t queries = p.query_start_loc[r + 1] - p.query_start_loc[r];
    const bool any = p.idx_mapping[r] >= 0 && p.seq_lens[r] > 0 && queries > 0;
    return any ? (queries * p.group + p.prefill_rows_per_tile - 1) / p.prefill_rows_per_tile : 0;
  });
}

__global__ void __launch_bounds__(kThreads) schedule_kernel(const ScheduleParams p) {
  pdl_wait();
  pdl_release();
  if (blockIdx.x == 0) {
    schedule_decode(p);
  } else {
    schedule_prefill(p);
  }
}

}  // namespace

void native_schedule(Stream& stream, const ScheduleParams& params) {
  launch(stream, "attention_schedule", {dim3(2), dim3(kThreads)}, schedule_kernel, params);
}

}  // namespace warprow::cuda
