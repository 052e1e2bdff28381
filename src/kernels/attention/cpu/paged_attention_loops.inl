// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cpu/paged_attention_loops.h"
#include "kernels/simd/even_parts.h"
#include "kernels/simd/float8.inl"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

// The online-softmax state of some keys: output and sum, relative to their largest score.
struct State {
  float* acc;  // [lines, dim_v]
  float* max;  // [lines]
  float* sum;  // [lines]
};

// The scratch of one item. A line is one (query, head) pair: line = query * group + head in group.
struct Work {
  float* keys;     // [kKeyTile / kLanes, dim_k / kLanes, kLanes keys, kLanes]: see dot_keys
  float* values;   // [kKeyTile, dim_v]
  float* q;        // [lines, dim_k], zero past head_dim_k
  float* weights;  // [lines, kKeyTile]
  State part;      // of the current part's tiles so far
  State total;     // of the parts before it
  int dim_k;       // padded to kLanes
  int dim_v;
  int lines;
};

// Keys that a query sees: positions [begin, end).
struct Span {
  int begin;
  int end;
};

constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a > b ? a : b; }

inline Span visible(const AttentionTile& a, int position) {
  const int behind = a.window > 0 ? most(0, position - a.window + 1) : 0;
  if (a.causal) {
    return {behind, least(position + 1, a.seq_len)};
  }
  return {behind, a.window > 0 ? least(position + a.window, a.seq_len) : a.seq_len};
}

inline State state_at(const Work& w, float* p) {
  float* max = p + int64_t{w.lines} * w.dim_v;
  return {p, max, max + w.lines};
}

inline Work cut_scratch(const AttentionTile& a) {
  Work w{};
  w.dim_k = (a.head_dim_k + kLanes - 1) / kLanes * kLanes;
  w.dim_v = (a.head_dim_v + kLanes - 1) / kLanes * kLanes;
  w.lines = a.num_queries * a.group;
  float* p = a.scratch;
  const auto take = [&p](int64_t n) {
    float* at = p;
    p += n;
    return at;
  };
  w.keys = take(int64_t{kKeyTile} * w.dim_k);
  w.values = take(int64_t{kKeyTile} * w.dim_v);
  w.q = take(int64_t{w.lines} * w.dim_k);
  w.weights = take(int64_t{w.lines} * kKeyTile);
  const int64_t state = attention_state_floats(w.lines, a.head_dim_v);
  w.part = state_at(w, a.state != nullptr ? a.state : take(state));
  w.total = state_at(w, take(state));
  return w;
}

// The state before any key. Sinks (one per head of the group, null: none) count as keys without a value.
inline void start(const Work& w, const State& state, const float* sinks, int group) {
  for (int64_t i = 0; i < int64_t{w.lines} * w.dim_v; ++i) {
    state.acc[i] = 0.0F;
  }
  for (int line = 0; line < w.lines; ++line) {
    state.max[line] = sinks != nullptr ? sinks[line % group] : -kInfinity;
    state.sum[line] = sinks != nullptr ? 1.0F : 0.0F;
  }
}

inline void start_part(const Work& w) { start(w, w.part, nullptr, 1); }
inline void start_total(const AttentionTile& a, const Work& w) {
  start(w, w.total, a.sinks, a.group);
}

// Adds a part's state to the total.
inline void merge(const Work& w, const State& part) {
  for (int line = 0; line < w.lines; ++line) {
    const float old_max = w.total.max[line];
    const float part_max = part.max[line];
    if (part_max == -kInfinity) {
      continue;  // the line sees none of its keys
    }
    const float new_max = old_max > part_max ? old_max : part_max;
    const VecF keep = exp_nonpositive(splat(old_max - new_max));
    const VecF take = exp_nonpositive(splat(part_max - new_max));
    w.total.max[line] = new_max;
    w.total.sum[line] = w.total.sum[line] * keep[0] + part.sum[line] * take[0];
    float* to = w.total.acc + int64_t{line} * w.dim_v;
    const float* from = part.acc + int64_t{line} * w.dim_v;
    for (int d = 0; d < w.dim_v; d += kLanes) {
      store(to + d, fma(load(from + d), take, load(to + d) * keep));
    }
  }
}

inline void copy_queries(const AttentionTile& a, const Work& w) {
  for (int line = 0; line < w.lines; ++line) {
    const int head = line % a.group;
    const float* q = a.q + line / a.group * a.q_stride + int64_t{head} * a.head_dim_k;
    float* copy = w.q + int64_t{line} * w.dim_k;
    __builtin_memcpy(copy, q, static_cast<unsigned>(a.head_dim_k) * sizeof(float));
    for (int d = a.head_dim_k; d < w.dim_k; ++d) {
      copy[d] = 0.0F;
    }
  }
}

template <CacheKind kKind>
inline VecF load_cache(const void* cache, int64_t at) {
  switch (kKind) {
    case CacheKind::kF32:
      return load(static_cast<const float*>(cache) + at);
    case CacheKind::kBF16:
      return load_bf16(static_cast<const uint16_t*>(cache) + at);
    case CacheKind::kF8E4M3:
      return load_f8<E4M3>(static_cast<const uint8_t*>(cache) + at);
    case CacheKind::kF8E5M2:
      return load_f8<E5M2>(static_cast<const uint8_t*>(cache) + at);
  }
}

// Converts n cache elements to floats and stores vector i of them at out + i * step. The last vector is
// padded with zeros.
template <CacheKind kKind>
inline void load_row_of(const void* cache, int64_t at, int n, float* out, int step) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes, out += step) {
    store(out, load_cache<kKind>(cache, at + i));
  }
  if (i < n) {
    constexpr int kBytes = cache_bytes(kKind);
    float rest[kLanes] = {};
    __builtin_memcpy(rest,
                     static_cast<const char*>(cache) + (at + i) * kBytes,
                     static_cast<unsigned>((n - i) * kBytes));
    store(out, load_cache<kKind>(rest, 0));
  }
}
inline void load_row(CacheKind kind, const void* cache, int64_t at, int n, float* out, int step) {
  switch (kind) {
    case CacheKind::kF32:
      return load_row_of<CacheKind::kF32>(cache, at, n, out, step);
    case CacheKind::kBF16:
      return load_row_of<CacheKind::kBF16>(cache, at, n, out, step);
    case CacheKind::kF8E4M3:
      return load_row_of<CacheKind::kF8E4M3>(cache, at, n, out, step);
    case CacheKind::kF8E5M2:
      return load_row_of<CacheKind::kF8E5M2>(cache, at, n, out, step);
  }
}

// Calls f(j, element offset) for positions base + j, j in [see.begin, see.end).
template <typename F>
inline void for_each_key(const AttentionTile& a, int base, Span see, const F& f) {
  int block = (base + see.begin) / a.block_size;
  int offset = (base + see.begin) % a.block_size;
  for (int j = see.begin; j < see.end; ++block, offset = 0) {
    int64_t at = a.blocks[block] * a.block_stride + offset * a.token_stride;
    const int end = least(see.end, j + a.block_size - offset);
    for (; j < end; ++j, at += a.token_stride) {
      f(j, at);
    }
  }
}

// The positions of an item's keys, for a loop over key tiles.
struct Tiles {
  int begin;  // first position
  int end;
  [[nodiscard]] int first_base() const { return begin / kKeyTile * kKeyTile; }
  // The keys of the tile at `base`, relative to it; empty past the end.
  [[nodiscard]] Span in_tile(int base) const {
    return {most(0, begin - base), least(kKeyTile, end - base)};
  }
};

inline Tiles tiles_of(const AttentionTile& a) {
  const int begin = visible(a, a.first_position).begin;
  const int end = visible(a, a.first_position + a.num_queries - 1).end;
  return a.state == nullptr ? Tiles{begin, end}
                            : Tiles{most(begin, a.part_begin), least(end, a.part_end)};
}

// The cache lines of the next tile. They are prefetched a few at a time between the arithmetic: decode is
// bound by memory, not arithmetic, and a burst of requests would only wait in a queue.
struct Ahead {
  const AttentionTile* item = nullptr;  // null: there is no next tile
  int count = 0;
  int64_t at[kKeyTile];
};

inline void look_ahead(const AttentionTile& a, const Tiles& tiles, int base, Ahead& ahead) {
  const bool more = base + kKeyTile < tiles.end;
  ahead.item = more ? &a : a.next;
  ahead.count = 0;
  if (ahead.item == nullptr) {
    return;
  }
  const Tiles next = tiles_of(*ahead.item);
  const int next_base = more ? base + kKeyTile : next.first_base();
  for_each_key(*ahead.item, next_base, next.in_tile(next_base), [&](int, int64_t at) {
    ahead.at[ahead.count++] = at;
  });
}

// Always inlined: g++ treats a function that only prefetches as free of side effects and drops calls to it.
[[gnu::always_inline]] inline void fetch(const Ahead& ahead, int begin, int end) {
  for (int j = begin; j < end && j < ahead.count; ++j) {
    const int element = cache_bytes(ahead.item->kind);
    const int64_t at = ahead.at[j] * element;
    for (int i = 0; i < ahead.item->head_dim_k * element; i += 64) {
      __builtin_prefetch(static_cast<const char*>(ahead.item->k) + at + i);
    }
    for (int i = 0; i < ahead.item->head_dim_v * element; i += 64) {
      __builtin_prefetch(static_cast<const char*>(ahead.item->v) + at + i);
    }
  }
}

// Loads keys and values of positions base + [see.begin, see.end). Block table entries before the first key in
// the window may be invalid, so nothing outside `see` is read. The scores of stale key rows are masked.
inline void load_tile(const AttentionTile& a, const Work& w, int base, Span see) {
  for_each_key(a, base, see, [&](int j, int64_t at) {
    float* key = w.keys + int64_t{j / kLanes} * kLanes * w.dim_k + int64_t{j % kLanes} * kLanes;
    load_row(a.kind, a.k, at, a.head_dim_k, key, kLanes * kLanes);
    load_row(a.kind, a.v, at, a.head_dim_v, w.values + int64_t{j} * w.dim_v, kLanes);
  });
}

inline VecF capped(VecF s, float cap) {
  const VecF e = exp(s * (2.0F / cap));
  return cap - (2.0F * cap) / (e + 1.0F);
}

// Stores the dot products of `Lines` lines with the tile's keys in w.weights, for at least the keys in `see`. Four keys
// at a time fit the registers, with a few lines, so that a vector of keys is loaded once for them.
template <int Lines>
inline void dot_copied(const Work& w, int line, Span see) {
  const float* q = w.q + int64_t{line} * w.dim_k;
  float* dots = w.weights + int64_t{line} * kKeyTile;
  for (int group = see.begin / kLanes * kLanes; group < see.end; group += kLanes) {
    VecF fours[Lines][kLanes / 4];
    WR_UNROLL
    for (int i = 0; i < kLanes / 4; ++i) {
      // Keys are interleaved: vector d of every key, then vector d + 1.
      const float* keys = w.keys + int64_t{group} * w.dim_k + i * 4 * kLanes;
      VecF sum[Lines][4] = {};
      for (int d = 0; d < w.dim_k; d += kLanes, keys += kLanes * kLanes) {
        VecF x[Lines];
        WR_UNROLL
        for (int m = 0; m < Lines; ++m) {
          x[m] = load(q + int64_t{m} * w.dim_k + d);
        }
        WR_UNROLL
        for (int j = 0; j < 4; ++j) {
          const VecF key = load(keys + j * kLanes);
          WR_UNROLL
          for (int m = 0; m < Lines; ++m) {
            sum[m][j] = fma(x[m], key, sum[m][j]);
          }
        }
      }
      WR_UNROLL
      for (int m = 0; m < Lines; ++m) {
        fours[m][i] = sum_four(sum[m]);
      }
    }
    WR_UNROLL
    for (int m = 0; m < Lines; ++m) {
      store(dots + m * kKeyTile + group, sum_fours(fours[m]));
    }
  }
}
constexpr int kDotLines = 3;

// The scores of kLanes keys from their dot products: -infinity for keys outside `see`, unless the line sees all of the tile.
template <bool kSeesAll>
inline VecF scores_of(const AttentionTile& a, const float* dots, int first, Span see) {
  VecF s = load(dots + first) * a.scale;
  if (a.soft_cap > 0.0F) {
    s = capped(s, a.soft_cap);
  }
  if constexpr (!kSeesAll) {
    VecI lane;
    for (int i = 0; i < kLanes; ++i) {
      lane[i] = i;
    }
    const VecI j = lane + first;
    s = ((j >= see.begin) & (j < see.end)) ? s : splat(-kInfinity);
  }
  return s;
}

inline void scale_sums(const Work& w, int line, float factor) {
  float* acc = w.part.acc + int64_t{line} * w.dim_v;
  for (int d = 0; d < w.dim_v; d += kLanes) {
    store(acc + d, load(acc + d) * factor);
  }
}

// How a line's weights are stored.
constexpr int kTileVectors = kKeyTile / kLanes;
struct FloatWeights {
  static void put(const VecF (&weights)[kTileVectors], float* to) {
    WR_UNROLL
    for (int g = 0; g < kTileVectors; ++g) {
      store(to + g * kLanes, weights[g]);
    }
  }
};

// Online softmax of one line over one tile: replaces its dot products in w.weights by weights e^(s - max), 0
// for keys that it does not see, updates its maximum and sum, and rescales its accumulator. `see` is relative
// to the tile and not empty.
template <typename Weights>
inline void softmax_line(const AttentionTile& a, const Work& w, int line, Span see) {
  VecF scores[kTileVectors];
  float* weights = w.weights + int64_t{line} * kKeyTile;
  VecF top = splat(-kInfinity);
  for (int g = 0; g < kTileVectors; ++g) {
    scores[g] = scores_of<false>(a, weights, g * kLanes, see);
    top = max(top, scores[g]);
  }
  const float tile_max = max_lanes(top);
  const float old_max = w.part.max[line];
  const float new_max = old_max > tile_max ? old_max : tile_max;
  VecF sum = {};
  for (int g = 0; g < kTileVectors; ++g) {
    scores[g] = exp_nonpositive(scores[g] - new_max);
    sum += scores[g];
  }
  Weights::put(scores, weights);
  const float tile_sum = sum_lanes(sum);
  if (new_max == old_max) {
    w.part.sum[line] += tile_sum;
    return;
  }
  const VecF shrink = exp_nonpositive(splat(old_max - new_max));
  w.part.sum[line] = w.part.sum[line] * shrink[0] + tile_sum;
  w.part.max[line] = new_max;
  scale_sums(w, line, shrink[0]);
}

// Lane i of the result is p[i / 4].
template <int... I>
inline VecF each_four_times(const float* p, Indices<I...>) {
  return VecF{p[I / 4]...};
}
// Lanes 4N .. 4N + 3 of v, over and over.
template <int N, int... I>
inline VecF four_everywhere(VecF v, Indices<I...>) {
  return __builtin_shufflevector(v, v, (I % 4 + 4 * N)...);
}

// The same for kTrees lines that see all of the tile. A line alone waits for the trees over its lanes and for the steps of
// e^x; together they share the trees.
template <typename Weights>
inline void softmax_whole_lines(const AttentionTile& a, const Work& w, int line) {
  float* weights = w.weights + int64_t{line} * kKeyTile;
  VecF tops[kTrees];
  WR_UNROLL
  for (int m = 0; m < kTrees; ++m) {
    tops[m] = splat(-kInfinity);
    WR_UNROLL
    for (int g = 0; g < kKeyTile; g += kLanes) {
      const VecF scores = scores_of<true>(a, weights + m * kKeyTile, g, {});
      tops[m] = max(tops[m], scores);
      store(weights + m * kKeyTile + g, scores);
    }
  }
  const VecF tile_max = trees_of_lanes(tops, MaxLanes{});
  const VecF old_max = each_four_times(w.part.max + line, LaneIndices{});
  const VecF new_max = old_max > tile_max ? old_max : tile_max;
  VecF sums[kTrees];
  const auto of_line = [&]<int M>() {
    const VecF limit = four_everywhere<M>(new_max, LaneIndices{});
    sums[M] = VecF{};
    VecF e[kTileVectors];
    WR_UNROLL
    for (int g = 0; g < kTileVectors; ++g) {
      e[g] = exp_nonpositive(load(weights + M * kKeyTile + g * kLanes) - limit);
      sums[M] += e[g];
    }
    Weights::put(e, weights + M * kKeyTile);
  };
  [&]<int... M>(Indices<M...>) {
    (of_line.template operator()<M>(), ...);
  }(typename MakeIndices<kTrees>::Type{});
  const VecF tile_sum = trees_of_lanes(sums, AddLanes{});
  const VecF shrink = exp_nonpositive(old_max - new_max);  // 1 where the maximum stays
  const VecF sum = each_four_times(w.part.sum + line, LaneIndices{}) * shrink + tile_sum;
  for (int m = 0; m < kTrees; ++m) {
    w.part.sum[line + m] = sum[4 * m];
    if (new_max[4 * m] != old_max[4 * m]) {
      w.part.max[line + m] = new_max[4 * m];
      scale_sums(w, line + m, shrink[4 * m]);
    }
  }
}

// Reads the values of a tile from scratch (TileValues) or from the cache (CacheValues).
struct TileValues {
  const Work& w;
  VecF operator()(int j, int d) const { return load(w.values + int64_t{j} * w.dim_v + d); }
};
template <CacheKind kKind>
struct CacheValues {
  const void* v;
  const int64_t* at;
  VecF operator()(int j, int d) const { return load_cache<kKind>(v, at[j] + d); }
};

// acc += weights x values for `Lines` lines and `Cols` vectors of the head, keys [see.begin,
// see.end).
template <int Lines, int Cols, typename Values>
inline void add_values_block(const Work& w, int line, int d, Span see, const Values& values) {
  VecF acc[Lines][Cols];
  float* to = w.part.acc + int64_t{line} * w.dim_v + d;
  const float* weights = w.weights + int64_t{line} * kKeyTile;
  WR_UNROLL
  for (int m = 0; m < Lines; ++m) {
    WR_UNROLL
    for (int c = 0; c < Cols; ++c) {
      acc[m][c] = load(to + int64_t{m} * w.dim_v + c * kLanes);
    }
  }
  for (int j = see.begin; j < see.end; ++j) {
    VecF v[Cols];
    WR_UNROLL
    for (int c = 0; c < Cols; ++c) {
      v[c] = values(j, d + c * kLanes);
    }
    WR_UNROLL
    for (int m = 0; m < Lines; ++m) {
      const VecF p = splat(weights[m * kKeyTile + j]);
      WR_UNROLL
      for (int c = 0; c < Cols; ++c) {
        acc[m][c] = fma(p, v[c], acc[m][c]);
      }
    }
  }
  WR_UNROLL
  for (int m = 0; m < Lines; ++m) {
    WR_UNROLL
    for (int c = 0; c < Cols; ++c) {
      store(to + int64_t{m} * w.dim_v + c * kLanes, acc[m][c]);
    }
  }
}

// Accumulators of a block: as many as the registers hold beside values and a weight.
constexpr int kSums = kLanes == 16 ? 16 : kLanes == 8 ? 12 : 8;
constexpr int kBlockLines = kLanes == 8 ? 6 : 4;

template <int Lines, typename Values>
inline void add_values_lines(const Work& w, int line, Span see, const Values& values) {
  constexpr int kCols = kSums / Lines < 4 ? kSums / Lines : 4;
  int d = 0;
  for (; d + kCols * kLanes <= w.dim_v; d += kCols * kLanes) {
    add_values_block<Lines, kCols>(w, line, d, see, values);
  }
  for (; d < w.dim_v; d += kLanes) {
    add_values_block<Lines, 1>(w, line, d, see, values);
  }
}

inline void add_values(const Work& w, Span see) {
  for_each_even_tile<kBlockLines>(w.lines, [&]<int Lines>(int64_t line) {
    add_values_lines<Lines>(w, static_cast<int>(line), see, TileValues{w});
  });
}

inline void finish_lines(const AttentionTile& a, const Work& w) {
  for (int line = 0; line < w.lines; ++line) {
    const int query = line / a.group;
    const int head = line % a.group;
    const float sum = w.total.sum[line];
    const float factor = sum > 0.0F ? a.v_scale / sum : 0.0F;
    const float* acc = w.total.acc + int64_t{line} * w.dim_v;
    float* out = a.out + query * a.out_stride + int64_t{head} * a.head_dim_v;
    for (int d = 0; d < a.head_dim_v; ++d) {
      out[d] = acc[d] * factor;
    }
    if (a.lse != nullptr) {
      a.lse[query * a.lse_stride + head] =
          sum > 0.0F ? w.total.max[line] + __builtin_logf(sum) : -kInfinity;
    }
  }
}

// For few lines, as in decode, copying the tile costs more than it saves: they read keys and values straight
// from the cache. Each score and each sum uses the same operations in the same order as with a copy, so both
// paths are bit-equal.
template <int Lines, CacheKind kKind>
inline void dot_lines_direct(
    const AttentionTile& a, const Work& w, const int64_t* at, Span see, const Ahead& ahead) {
  constexpr int kKeys = Lines == 1  ? kLanes
                        : Lines < 4 ? most(kLanes / 2, 4)
                                    : kLanes / 4;  // as many as fit in registers
  for (int group = see.begin / kLanes * kLanes; group < see.end; group += kLanes) {
    VecF sums[Lines][kLanes];
    for (int first = 0; first < kLanes; first += kKeys) {
      fetch(ahead, group + first, group + first + kKeys);
      VecF sum[Lines][kKeys];
      WR_UNROLL
      for (int m = 0; m < Lines; ++m) {
        WR_UNROLL
        for (int j = 0; j < kKeys; ++j) {
          sum[m][j] = VecF{};
        }
      }
      for (int d = 0; d < w.dim_k; d += kLanes) {
        VecF q[Lines];
        WR_UNROLL
        for (int m = 0; m < Lines; ++m) {
          q[m] = load(w.q + int64_t{m} * w.dim_k + d);
        }
        WR_UNROLL
        for (int j = 0; j < kKeys; ++j) {
          const VecF key = load_cache<kKind>(a.k, at[group + first + j] + d);
          WR_UNROLL
          for (int m = 0; m < Lines; ++m) {
            sum[m][j] = fma(q[m], key, sum[m][j]);
          }
        }
      }
      WR_UNROLL
      for (int m = 0; m < Lines; ++m) {
        WR_UNROLL
        for (int j = 0; j < kKeys; ++j) {
          sums[m][first + j] = sum[m][j];
        }
      }
    }
    WR_UNROLL
    for (int m = 0; m < Lines; ++m) {
      store(w.weights + m * kKeyTile + group, sum_each(sums[m]));
    }
  }
}

// With at most this many lines the tile is not copied. 8-bit elements are converted once, in the copy.
constexpr int kDirectLines = 4;

inline bool goes_direct(const AttentionTile& a, const Work& w) {
  return !is_f8(a.kind) && w.lines <= kDirectLines && a.head_dim_k % kLanes == 0 &&
         a.head_dim_v % kLanes == 0;
}

// Offsets of a tile's keys in the cache. Keys outside `see` get the offset of a key inside; their scores are
// masked.
inline void locate_keys(const AttentionTile& a, int base, Span see, int64_t* at) {
  for_each_key(a, base, see, [&](int j, int64_t offset) { at[j] = offset; });
  for (int j = 0; j < see.begin; ++j) {
    at[j] = at[see.begin];
  }
  for (int j = see.end; j < kKeyTile; ++j) {
    at[j] = at[see.begin];
  }
}

template <int Lines>
inline void dot_direct(
    const AttentionTile& a, const Work& w, const int64_t* at, Span see, const Ahead& ahead) {
  if (a.kind == CacheKind::kBF16) {
    dot_lines_direct<Lines, CacheKind::kBF16>(a, w, at, see, ahead);
  } else {
    dot_lines_direct<Lines, CacheKind::kF32>(a, w, at, see, ahead);
  }
}
template <int Lines>
inline void add_values_direct(const AttentionTile& a, const Work& w, const int64_t* at, Span see) {
  if (a.kind == CacheKind::kBF16) {
    add_values_lines<Lines>(w, 0, see, CacheValues<CacheKind::kBF16>{a.v, at});
  } else {
    add_values_lines<Lines>(w, 0, see, CacheValues<CacheKind::kF32>{a.v, at});
  }
}

inline Span line_span(const AttentionTile& a, int line, int base) {
  const Span keys = visible(a, a.first_position + line / a.group);
  return {most(0, keys.begin - base), least(kKeyTile, keys.end - base)};
}

// Turns every line's dot products into weights. Returns the range of keys that at least one line sees.
template <typename Weights>
inline Span softmax_lines(const AttentionTile& a, const Work& w, int base) {
  Span all = {kKeyTile, 0};
  for (int line = 0; line < w.lines;) {
    const Span see = line_span(a, line, base);
    // Both ends of a span grow with the position.
    if (line + kTrees <= w.lines && see.end == kKeyTile &&
        line_span(a, line + kTrees - 1, base).begin == 0) {
      softmax_whole_lines<Weights>(a, w, line);
      all = {0, kKeyTile};
      line += kTrees;
      continue;
    }
    if (see.begin < see.end) {
      softmax_line<Weights>(a, w, line, see);
      all = {least(all.begin, see.begin), most(all.end, see.end)};
    } else {
      __builtin_memset(w.weights + int64_t{line} * kKeyTile, 0, kKeyTile * sizeof(float));
    }
    ++line;
  }
  return all;
}

// Merges the part into the total if the tile at `base` ends it. An item that is a single part keeps its
// state.
inline void end_part(const AttentionTile& a, const Work& w, const Tiles& tiles, int base) {
  if (a.state == nullptr && (base + kKeyTile >= tiles.end || part_end(base) == base + kKeyTile)) {
    merge(w, w.part);
    start_part(w);
  }
}

template <int Lines>
void run_direct(const AttentionTile& a, const Work& w, const Tiles& tiles) {
  Ahead ahead;
  for (int base = tiles.first_base(); base < tiles.end; base += kKeyTile) {
    const Span see = tiles.in_tile(base);
    int64_t at[kKeyTile];
    locate_keys(a, base, see, at);
    look_ahead(a, tiles, base, ahead);
    dot_direct<Lines>(a, w, at, see, ahead);
    add_values_direct<Lines>(a, w, at, softmax_lines<FloatWeights>(a, w, base));
    end_part(a, w, tiles, base);
  }
}

void run_copied(const AttentionTile& a, const Work& w, const Tiles& tiles) {
  Ahead ahead;
  for (int base = tiles.first_base(); base < tiles.end; base += kKeyTile) {
    load_tile(a, w, base, tiles.in_tile(base));
    look_ahead(a, tiles, base, ahead);
    for (int line = 0; line < w.lines;) {
      const int end = least(line + kDotLines, w.lines);
      fetch(ahead, line * kKeyTile / w.lines, end * kKeyTile / w.lines);
      const Span first = line_span(a, line, base);
      const Span last = line_span(a, end - 1, base);
      const Span see{first.begin, last.end};  // both ends grow with the position
      if (end - line == kDotLines) {
        dot_copied<kDotLines>(w, line, see);
        line = end;
      } else {
        dot_copied<1>(w, line++, see);
      }
    }
    add_values(w, softmax_lines<FloatWeights>(a, w, base));
    end_part(a, w, tiles, base);
  }
}

void run_f32(const AttentionTile& a, const Work& w, const Tiles& tiles) {
  if (!goes_direct(a, w)) {
    run_copied(a, w, tiles);
  } else if (w.lines == 1) {
    run_direct<1>(a, w, tiles);
  } else if (w.lines == 2) {
    run_direct<2>(a, w, tiles);
  } else if (w.lines == 3) {
    run_direct<3>(a, w, tiles);
  } else {
    run_direct<4>(a, w, tiles);
  }
}

}  // namespace
}  // namespace warprow::cpu

#if defined(__AVX512BF16__)
#include "kernels/attention/cpu/paged_attention_bf16.inl"
#endif
#if defined(__AMX_BF16__)
#include "kernels/attention/cpu/paged_attention_amx.inl"
#endif

namespace warprow::cpu {

void WR_ISA_NAME(paged_attention_tile)(const AttentionTile& a) {
  const Work w = cut_scratch(a);
  copy_queries(a, w);
  start_part(w);
  start_total(a, w);
#if defined(__AMX_BF16__)
  const auto run = takes_amx(a) ? run_amx : takes_bf16(a) ? run_bf16 : run_f32;
#elif defined(__AVX512BF16__)
  const auto run = takes_bf16(a) ? run_bf16 : run_f32;
#else
  const auto run = run_f32;
#endif
  run(a, w, tiles_of(a));
  if (a.state == nullptr) {
    finish_lines(a, w);
  }
}

void WR_ISA_NAME(paged_attention_merge)(const AttentionTile& a,
                                        const float* states,
                                        int32_t num_parts) {
  const Work w = cut_scratch(a);
  start_total(a, w);
  const int64_t state_floats = attention_state_floats(w.lines, a.head_dim_v);
  for (int32_t i = 0; i < num_parts; ++i) {
    merge(w, state_at(w, const_cast<float*>(states) + i * state_floats));
  }
  finish_lines(a, w);
}

}  // namespace warprow::cpu
