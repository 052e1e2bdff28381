// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

// The scratch of one item, cut up. A line is one (query, head) pair: line = query * group + head in group.
struct Work {
  float* keys;     // [kKeyTile, dim_k]
  float* values;   // [kKeyTile, dim_v]
  float* q;        // [lines, dim_k], zeros behind head_dim_k
  float* acc;      // [lines, dim_v]
  float* weights;  // [lines, kKeyTile]
  float* max;      // [lines]
  float* sum;      // [lines]
  int dim_k;       // padded
  int dim_v;
  int lines;
};

// Keys that a query sees: positions [begin, end).
struct Span {
  int begin;
  int end;
};

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a > b ? a : b; }

inline Span visible(const AttentionTile& a, int position) {
  if (!a.causal) {
    return {0, a.seq_len};
  }
  return {a.window > 0 ? most(0, position - a.window + 1) : 0, least(position + 1, a.seq_len)};
}

inline Work cut_scratch(const AttentionTile& a) {
  Work w{};
  w.dim_k = padded_row(a.head_dim_k);
  w.dim_v = padded_row(a.head_dim_v);
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
  w.acc = take(int64_t{w.lines} * w.dim_v);
  w.weights = take(int64_t{w.lines} * kKeyTile);
  w.max = take(w.lines);
  w.sum = take(w.lines);
  return w;
}

inline void start_lines(const AttentionTile& a, const Work& w) {
  for (int line = 0; line < w.lines; ++line) {
    const int head = line % a.group;
    const float* q = a.q + line / a.group * a.q_stride + int64_t{head} * a.head_dim_k;
    float* copy = w.q + int64_t{line} * w.dim_k;
    __builtin_memcpy(copy, q, static_cast<unsigned>(a.head_dim_k) * sizeof(float));
    for (int d = a.head_dim_k; d < w.dim_k; ++d) {
      copy[d] = 0.0F;
    }
    for (int d = 0; d < w.dim_v; ++d) {
      w.acc[int64_t{line} * w.dim_v + d] = 0.0F;
    }
    w.max[line] = a.sinks != nullptr ? a.sinks[head] : -kInfinity;
    w.sum[line] = a.sinks != nullptr ? 1.0F : 0.0F;
  }
}

// n cache elements to floats; [n, padded) become zeros.
inline void load_row(const void* cache, int64_t at, bool bf16, int n, int padded, float* out) {
  int i = 0;
  if (bf16) {
    const uint16_t* p = static_cast<const uint16_t*>(cache) + at;
    for (; i + kLanes <= n; i += kLanes) {
      store(out + i, load_bf16(p + i));
    }
    for (; i < n; ++i) {
      const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
      __builtin_memcpy(out + i, &bits, sizeof(bits));
    }
  } else {
    const float* p = static_cast<const float*>(cache) + at;
    for (; i + kLanes <= n; i += kLanes) {
      store(out + i, load(p + i));
    }
    for (; i < n; ++i) {
      out[i] = p[i];
    }
  }
  for (; i < padded; ++i) {
    out[i] = 0.0F;
  }
}

// Keys and values of positions base + [see.begin, see.end). The block table may hold anything before the first key that
// a window still shows, so nothing outside is touched; scores of stale key rows are masked away.
inline void load_tile(const AttentionTile& a, const Work& w, int base, Span see) {
  for (int j = see.begin; j < see.end; ++j) {
    const int position = base + j;
    const int64_t at = a.blocks[position / a.block_size] * a.block_stride +
                       position % a.block_size * a.token_stride;
    load_row(a.k, at, a.bf16, a.head_dim_k, w.dim_k, w.keys + int64_t{j} * w.dim_k);
    load_row(a.v, at, a.bf16, a.head_dim_v, w.dim_v, w.values + int64_t{j} * w.dim_v);
  }
}

// Dot products of one query with kLanes consecutive keys.
inline VecF dot_keys(const float* q, const float* keys, int dim) {
  VecF sum[kLanes] = {};
  for (int d = 0; d < dim; d += kLanes) {
    const VecF x = load(q + d);
    for (int j = 0; j < kLanes; ++j) {
      sum[j] = fma(x, load(keys + int64_t{j} * dim + d), sum[j]);
    }
  }
  return sum_each(sum);
}

inline VecF capped(VecF s, float cap) {
  const VecF e = exp(s * (2.0F / cap));
  return cap - (2.0F * cap) / (e + 1.0F);
}

// One line meets one tile: its weights e^(s - max) go to w.weights (0 where it does not see), its maximum and sum
// move on and its accumulator is rescaled. `see` is relative to the tile and not empty.
inline void weigh_tile(const AttentionTile& a, const Work& w, int line, Span see) {
  VecF scores[kKeyTile / kLanes];
  const float* q = w.q + int64_t{line} * w.dim_k;
  VecI lane;
  for (int i = 0; i < kLanes; ++i) {
    lane[i] = i;
  }
  VecF top = splat(-kInfinity);
  const int first = see.begin / kLanes;
  const int last = (see.end + kLanes - 1) / kLanes;
  for (int g = first; g < last; ++g) {
    VecF s = dot_keys(q, w.keys + int64_t{g} * kLanes * w.dim_k, w.dim_k) * a.scale;
    if (a.soft_cap > 0.0F) {
      s = capped(s, a.soft_cap);
    }
    const VecI j = lane + g * kLanes;
    s = (j >= see.begin) & (j < see.end) ? s : splat(-kInfinity);
    scores[g] = s;
    top = max(top, s);
  }
  const float tile_max = max_lanes(top);
  const float old_max = w.max[line];
  const float new_max = old_max > tile_max ? old_max : tile_max;
  float* weights = w.weights + int64_t{line} * kKeyTile;
  VecF sum = {};
  for (int g = 0; g < kKeyTile / kLanes; ++g) {
    VecF e = {};
    if (g >= first && g < last) {
      e = exp(scores[g] - new_max);
      sum += e;
    }
    store(weights + g * kLanes, e);
  }
  const float tile_sum = sum_lanes(sum);
  if (new_max == old_max) {
    w.sum[line] += tile_sum;
    return;
  }
  const VecF shrink = exp(splat(old_max - new_max));
  w.sum[line] = w.sum[line] * shrink[0] + tile_sum;
  w.max[line] = new_max;
  float* acc = w.acc + int64_t{line} * w.dim_v;
  for (int d = 0; d < w.dim_v; d += kLanes) {
    store(acc + d, load(acc + d) * shrink);
  }
}

// acc += weights x values for `Lines` lines and `Cols` vectors of the head, keys [see.begin, see.end).
template <int Lines, int Cols>
inline void add_values_block(const Work& w, int line, int d, Span see) {
  VecF acc[Lines][Cols];
  float* to = w.acc + int64_t{line} * w.dim_v + d;
  const float* weights = w.weights + int64_t{line} * kKeyTile;
  for (int m = 0; m < Lines; ++m) {
    for (int c = 0; c < Cols; ++c) {
      acc[m][c] = load(to + int64_t{m} * w.dim_v + c * kLanes);
    }
  }
  for (int j = see.begin; j < see.end; ++j) {
    const float* value = w.values + int64_t{j} * w.dim_v + d;
    VecF v[Cols];
    for (int c = 0; c < Cols; ++c) {
      v[c] = load(value + c * kLanes);
    }
    for (int m = 0; m < Lines; ++m) {
      const VecF p = splat(weights[m * kKeyTile + j]);
      for (int c = 0; c < Cols; ++c) {
        acc[m][c] = fma(p, v[c], acc[m][c]);
      }
    }
  }
  for (int m = 0; m < Lines; ++m) {
    for (int c = 0; c < Cols; ++c) {
      store(to + int64_t{m} * w.dim_v + c * kLanes, acc[m][c]);
    }
  }
}

template <int Lines>
inline void add_values_lines(const Work& w, int line, Span see) {
  constexpr int kCols = kLanes == 16 ? 4 : 2;  // as many accumulators as the register file takes
  int d = 0;
  for (; d + kCols * kLanes <= w.dim_v; d += kCols * kLanes) {
    add_values_block<Lines, kCols>(w, line, d, see);
  }
  for (; d < w.dim_v; d += kLanes) {
    add_values_block<Lines, 1>(w, line, d, see);
  }
}

inline void add_values(const Work& w, Span see) {
  int line = 0;
  for (; line + 4 <= w.lines; line += 4) {
    add_values_lines<4>(w, line, see);
  }
  switch (w.lines - line) {
    case 3:
      add_values_lines<3>(w, line, see);
      break;
    case 2:
      add_values_lines<2>(w, line, see);
      break;
    case 1:
      add_values_lines<1>(w, line, see);
      break;
    default:
      break;
  }
}

inline void finish_lines(const AttentionTile& a, const Work& w) {
  for (int line = 0; line < w.lines; ++line) {
    const int query = line / a.group;
    const int head = line % a.group;
    const float sum = w.sum[line];
    const float factor = sum > 0.0F ? 1.0F / sum : 0.0F;
    const float* acc = w.acc + int64_t{line} * w.dim_v;
    float* out = a.out + query * a.out_stride + int64_t{head} * a.head_dim_v;
    for (int d = 0; d < a.head_dim_v; ++d) {
      out[d] = acc[d] * factor;
    }
    if (a.lse != nullptr) {
      a.lse[query * a.lse_stride + head] =
          sum > 0.0F ? w.max[line] + __builtin_logf(sum) : -kInfinity;
    }
  }
}

}  // namespace

void WR_ISA_NAME(paged_attention_tile)(const AttentionTile& a) {
  const Work w = cut_scratch(a);
  start_lines(a, w);
  const int key_begin = visible(a, a.first_position).begin;
  const int key_end = visible(a, a.first_position + a.num_queries - 1).end;
  for (int base = key_begin / kKeyTile * kKeyTile; base < key_end; base += kKeyTile) {
    load_tile(a, w, base, {most(0, key_begin - base), least(kKeyTile, key_end - base)});
    Span all = {kKeyTile, 0};
    for (int line = 0; line < w.lines; ++line) {
      const Span keys = visible(a, a.first_position + line / a.group);
      const Span see = {most(0, keys.begin - base), least(kKeyTile, keys.end - base)};
      if (see.begin >= see.end) {
        __builtin_memset(w.weights + int64_t{line} * kKeyTile, 0, kKeyTile * sizeof(float));
        continue;
      }
      weigh_tile(a, w, line, see);
      all = {least(all.begin, see.begin), most(all.end, see.end)};
    }
    add_values(w, all);
  }
  finish_lines(a, w);
}

}  // namespace warprow::cpu
