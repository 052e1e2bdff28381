// SPDX-License-Identifier: Apache-2.0
// The part of paged_attention_loops.inl for dot products of bf16 pairs (vdpbf16ps): queries and weights are
// rounded to bf16, sums are float32. A score is a sum over the head's pairs in order, and an output is a sum
// over pairs of keys in order, whatever the number of lines.
namespace warprow::cpu {
namespace {

typedef uint16_t VecPairs __attribute__((vector_size(kLanes * 4)));
constexpr int kPairElements = 2 * kLanes;

inline bool takes_bf16(const AttentionTile& a) {
  return a.kind == CacheKind::kBF16 && a.head_dim_k % kPairElements == 0 &&
         a.head_dim_v % kPairElements == 0;
}

// Inline assembly with the accumulator in place: gcc 12 moves and spills accumulators around the intrinsic.
inline VecF dot2(VecF acc, VecF x, VecF y) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(y));
  return acc;
}
inline VecF pair_everywhere(const float* pair) {
  int32_t bits;
  __builtin_memcpy(&bits, pair, sizeof(bits));
  return as_float(splat(bits));
}
// Rounds `low` and `high` to bf16: the lanes of both in this order.
inline void store_pairs(VecF low, VecF high, float* to) {
  const __m512bh pairs = _mm512_cvtne2ps_pbh(high, low);
  __builtin_memcpy(to, &pairs, sizeof(pairs));
}
// Rounds n floats to n bf16. `to` may be `from` or memory before it.
inline void round_to_pairs(const float* from, int n, float* to) {
  for (int i = 0; i < n; i += kPairElements, to += kLanes) {
    store_pairs(load(from + i), load(from + i + kLanes), to);
  }
}
struct PairWeights {
  static void put(const VecF (&weights)[kTileVectors], float* to) {
    WR_UNROLL
    for (int g = 0; g < kTileVectors; g += 2) {
      store_pairs(weights[g], weights[g + 1], to + g / 2 * kLanes);
    }
  }
};

// Swaps lane j of v[i] with lane i of v[j].
template <int U>
inline void transpose_step(VecF (&v)[kLanes]) {
  WR_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    if ((i & U) == 0) {
      const VecF a = v[i];
      const VecF b = v[i + U];
      v[i] = runs<U, 0>(a, b, LaneIndices{});
      v[i + U] = runs<U, 1>(a, b, LaneIndices{});
    }
  }
}
inline void transpose(VecF (&v)[kLanes]) {
  transpose_step<1>(v);
  transpose_step<2>(v);
  transpose_step<4>(v);
  transpose_step<8>(v);
}

// Transposes the tile's keys from the cache into w.keys: [group of kLanes keys, pair of the head, key in
// group]. Prefetches the first half of the next tile; interleave_values prefetches the other half.
inline void transpose_keys(
    const AttentionTile& a, const Work& w, const int64_t* at, Span see, const Ahead& ahead) {
  const auto* cache = static_cast<const uint16_t*>(a.k);
  const int chunks = w.dim_k / kPairElements;
  const int fetched = kLanes / 2 / chunks;
  for (int g = see.begin / kLanes; g * kLanes < see.end; ++g) {
    float* to = w.keys + int64_t{g} * kLanes * w.dim_k / 2;
    for (int c = 0; c < chunks; ++c, to += kLanes * kLanes) {
      fetch(ahead, (g * chunks + c) * fetched, (g * chunks + c + 1) * fetched);
      VecF v[kLanes];
      WR_UNROLL
      for (int k = 0; k < kLanes; ++k) {
        v[k] = load_as<VecF>(cache + at[g * kLanes + k] + c * kPairElements);
      }
      transpose(v);
      WR_UNROLL
      for (int d = 0; d < kLanes; ++d) {
        store(to + d * kLanes, v[d]);
      }
    }
  }
}

template <int Half, int... I>
inline VecPairs interleave(VecPairs a, VecPairs b, Indices<I...>) {
  return __builtin_shufflevector(a, b, (Half * kLanes + I / 2 + (I % 2) * kPairElements)...);
}

// Interleaves the tile's values from the cache into w.values: [pair of keys, element of the head].
inline void interleave_values(
    const AttentionTile& a, const Work& w, const int64_t* at, Span see, const Ahead& ahead) {
  using All = MakeIndices<kPairElements>::Type;
  const auto* cache = static_cast<const uint16_t*>(a.v);
  for (int j = see.begin / 2; 2 * j < see.end; ++j) {
    fetch(ahead, kKeyTile / 2 + j, kKeyTile / 2 + j + 1);
    float* to = w.values + int64_t{j} * w.dim_v;
    for (int d = 0; d < w.dim_v; d += kPairElements) {
      const auto even = load_as<VecPairs>(cache + at[2 * j] + d);
      const auto odd = load_as<VecPairs>(cache + at[2 * j + 1] + d);
      store(to + d, interleave<0>(even, odd, All{}));
      store(to + d + kLanes, interleave<1>(even, odd, All{}));
    }
  }
}

// Dot products of `Lines` lines with `Groups` groups of keys.
template <int Lines, int Groups>
inline void dot_block(const Work& w, int line, int group) {
  const int pairs = w.dim_k / 2;
  const float* q = w.q + int64_t{line} * pairs;
  const float* keys = w.keys + int64_t{group} * kLanes * pairs;
  VecF sum[Lines][Groups] = {};
  for (int d = 0; d < pairs; ++d) {
    VecF key[Groups];
    WR_UNROLL
    for (int g = 0; g < Groups; ++g) {
      key[g] = load(keys + (int64_t{g} * pairs + d) * kLanes);
    }
    WR_UNROLL
    for (int m = 0; m < Lines; ++m) {
      const VecF x = pair_everywhere(q + m * pairs + d);
      WR_UNROLL
      for (int g = 0; g < Groups; ++g) {
        sum[m][g] = dot2(sum[m][g], x, key[g]);
      }
    }
  }
  float* dots = w.weights + int64_t{line} * kKeyTile + group * kLanes;
  WR_UNROLL
  for (int m = 0; m < Lines; ++m) {
    WR_UNROLL
    for (int g = 0; g < Groups; ++g) {
      store(dots + m * kKeyTile + g * kLanes, sum[m][g]);
    }
  }
}
template <int Lines>
inline void dot_lines(const Work& w, int line, Span see) {
  if (see.begin < kLanes && see.end > kKeyTile - kLanes) {
    dot_block<Lines, kKeyTile / kLanes>(w, line, 0);
    return;
  }
  for (int g = see.begin / kLanes; g * kLanes < see.end; ++g) {
    dot_block<Lines, 1>(w, line, g);
  }
}

template <int Lines, int Cols>
inline void add_pairs_block(const Work& w, int line, int d, Span see) {
  float* to = w.part.acc + int64_t{line} * w.dim_v + d;
  const float* weights = w.weights + int64_t{line} * kKeyTile;
  VecF acc[Lines][Cols];
  WR_UNROLL
  for (int m = 0; m < Lines; ++m) {
    WR_UNROLL
    for (int c = 0; c < Cols; ++c) {
      acc[m][c] = load(to + int64_t{m} * w.dim_v + c * kLanes);
    }
  }
  for (int j = see.begin / 2; 2 * j < see.end; ++j) {
    const float* values = w.values + int64_t{j} * w.dim_v + d;
    VecF v[Cols];
    WR_UNROLL
    for (int c = 0; c < Cols; ++c) {
      v[c] = load(values + c * kLanes);
    }
    WR_UNROLL
    for (int m = 0; m < Lines; ++m) {
      const VecF p = pair_everywhere(weights + m * kKeyTile + j);
      WR_UNROLL
      for (int c = 0; c < Cols; ++c) {
        acc[m][c] = dot2(acc[m][c], p, v[c]);
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
template <int Lines>
inline void add_pairs(const Work& w, int line, Span see) {
  constexpr int kCols = 4;
  int d = 0;
  for (; d + kCols * kLanes <= w.dim_v; d += kCols * kLanes) {
    add_pairs_block<Lines, kCols>(w, line, d, see);
  }
  for (; d < w.dim_v; d += kPairElements) {
    add_pairs_block<Lines, 2>(w, line, d, see);
  }
}

// Calls f<Lines>(first line) over all lines.
template <typename F>
inline void in_blocks(int lines, const F& f) {
  int line = 0;
  for (; line + 4 <= lines; line += 4) {
    f.template operator()<4>(line);
  }
  switch (lines - line) {
    case 3:
      f.template operator()<3>(line);
      break;
    case 2:
      f.template operator()<2>(line);
      break;
    case 1:
      f.template operator()<1>(line);
      break;
    default:
      break;
  }
}

void run_bf16(const AttentionTile& a, const Work& w, const Tiles& tiles) {
  round_to_pairs(w.q, w.lines * w.dim_k, w.q);
  Ahead ahead;
  for (int base = tiles.first_base(); base < tiles.end; base += kKeyTile) {
    const Span see = tiles.in_tile(base);
    int64_t at[kKeyTile];
    locate_keys(a, base, see, at);
    look_ahead(a, tiles, base, ahead);
    transpose_keys(a, w, at, see, ahead);
    in_blocks(w.lines, [&]<int Lines>(int line) { dot_lines<Lines>(w, line, see); });
    const Span seen = softmax_lines<PairWeights>(a, w, base);
    interleave_values(a, w, at, see, ahead);
    in_blocks(w.lines, [&]<int Lines>(int line) { add_pairs<Lines>(w, line, seen); });
    end_part(a, w, tiles, base);
  }
}

}  // namespace
}  // namespace warprow::cpu
