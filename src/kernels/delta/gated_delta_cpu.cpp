// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/gated_delta.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/delta/gated_delta_loops.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace warprow::cpu {
namespace {

constexpr float kNormEps = 1e-6F;      // of queries and keys
constexpr int64_t kConvChannels = 64;  // of a piece of the convolution

struct Loops {
  void (*conv)(const ConvLoop&, int64_t);
  void (*delta)(const DeltaLoop&, int64_t);
  void (*normalise)(float*, int32_t, float, float);
  void (*gated_norm)(float*, const float*, const float*, int32_t, float);
};

// Copies floats [first, first + count) of the state in `cells` to `to`, zeros from null blocks.
void read_state(
    const StatePages& pages, const int32_t* cells, int64_t first, int64_t count, float* to) {
  while (count > 0) {
    const int64_t page = first / pages.page_floats;
    const int64_t at = first % pages.page_floats;
    const int64_t n = std::min(count, pages.page_floats - at);
    if (cells[page] == 0) {
      std::fill_n(to, n, 0.0F);
    } else {
      std::memcpy(
          to, pages.data + cells[page] * pages.page_stride + at, static_cast<size_t>(n) * 4);
    }
    first += n;
    to += n;
    count -= n;
  }
}

// The reverse; null blocks keep nothing.
void write_state(const StatePages& pages,
                 const int32_t* cells,
                 int64_t first,
                 int64_t count,
                 const float* from) {
  while (count > 0) {
    const int64_t page = first / pages.page_floats;
    const int64_t at = first % pages.page_floats;
    const int64_t n = std::min(count, pages.page_floats - at);
    if (cells[page] != 0) {
      std::memcpy(
          pages.data + cells[page] * pages.page_stride + at, from, static_cast<size_t>(n) * 4);
    }
    first += n;
    from += n;
    count -= n;
  }
}

// One row of a step: its tokens, and where its states are.
struct RowStates {
  int64_t first_tok = 0;
  int64_t num_toks = 0;
  int64_t num_before = 0;  // of these, tokens before the checkpoint; 0: none is kept
  int64_t num_stored =
      0;  // of these, tokens behind which the state is stored; the others are drafts
  const int32_t* own = nullptr;  // [num_pages] each
  const int32_t* kept = nullptr;
  const int32_t* start = nullptr;  // null: zeros
};

RowStates row_states(const GatedDeltaArgs& a, int64_t batch_idx) {
  RowStates row;
  const int32_t index = a.idx_mapping.data[batch_idx];
  row.first_tok = a.query_start_loc.data[batch_idx];
  row.num_toks = a.query_start_loc.data[batch_idx + 1] - row.first_tok;
  const int64_t end = a.seq_lens.data[batch_idx];
  const int64_t computed = end - row.num_toks;
  row.own = a.pages.table.of_row(index);
  row.kept = row.own + a.pages.num_pages;
  const int32_t* given = row.kept + a.pages.num_pages;
  if (computed > 0) {
    row.start = given[0] != 0 ? given : row.own;
  }
  const int64_t checkpoint = (end - 1) / a.pages.unit * a.pages.unit;
  row.num_before = row.kept[0] != 0 ? std::max<int64_t>(0, checkpoint - computed) : 0;
  row.num_stored = row.num_toks;
  if (a.cu_num_logits.empty()) {
    return row;
  }
  const int32_t* logits = a.cu_num_logits.data + batch_idx;
  const int64_t drafts = std::max(0, logits[1] - logits[0] - 1);
  row.num_stored -= drafts;
  if (!a.num_sampled.empty()) {
    row.first_tok += row.num_stored;
    row.num_toks = std::clamp<int64_t>(a.num_sampled.data[batch_idx] - 1, 0, drafts);
    row.num_stored = row.num_toks;
    row.num_before = 0;
    row.start = row.own;
  }
  return row;
}

// Rows of the step: those of the batch come first.
int64_t num_rows(const GatedDeltaArgs& a) {
  int64_t n = 0;
  while (n < a.idx_mapping.shape[0] && a.idx_mapping.data[n] >= 0) {
    ++n;
  }
  return n;
}

// Loads a part of a row's state, runs body(first token, tokens) before and after the checkpoint, stores the part, and runs
// body for the drafts.
template <typename Body>
void advance(const GatedDeltaArgs& a,
             const RowStates& row,
             int64_t first,
             int64_t count,
             int64_t pieces,
             int64_t piece_stride,
             float* local,
             const Body& body) {
  if (row.num_toks == 0) {
    return;
  }
  const auto each = [&](const auto& f) {
    for (int64_t i = 0; i < pieces; ++i) {
      f(first + i * piece_stride, local + i * count);
    }
  };
  each([&](int64_t at, float* to) {
    if (row.start == nullptr) {
      std::fill_n(to, count, 0.0F);
    } else {
      read_state(a.pages, row.start, at, count, to);
    }
  });
  if (row.num_before > 0) {
    body(row.first_tok, row.num_before);
    each([&](int64_t at, const float* from) { write_state(a.pages, row.kept, at, count, from); });
  }
  body(row.first_tok + row.num_before, row.num_stored - row.num_before);
  each([&](int64_t at, const float* from) { write_state(a.pages, row.own, at, count, from); });
  if (row.num_stored < row.num_toks) {
    body(row.first_tok + row.num_stored, row.num_toks - row.num_stored);
  }
}

void convolve(const GatedDeltaArgs& a, const Loops& loops, int64_t batch_idx, int64_t piece) {
  float window[(kMaxConvLen - 1) * kConvChannels];
  const RowStates row = row_states(a, batch_idx);
  const int64_t channels = a.shape.num_channels();
  const int64_t first = piece * kConvChannels;
  const int64_t count = std::min(kConvChannels, channels - first);
  const View<float, 2> x = a.qkvz.f32();
  advance(a,
          row,
          first,
          count,
          a.shape.conv_len - 1,
          channels,
          window,
          [&](int64_t tok, int64_t num_toks) {
            loops.conv({x.row(tok) + first,
                        x.stride[0],
                        a.conv + first,
                        channels,
                        window,
                        a.shape.conv_len,
                        static_cast<int32_t>(count)},
                       num_toks);
          });
}

float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

// Norms of a token's queries and keys, and its decays and betas.
void prepare(const GatedDeltaArgs& a, const Loops& loops, int64_t tok) {
  const GatedDeltaShape& shape = a.shape;
  float* x = a.qkvz.f32().row(tok);
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.key_dim));
  for (int32_t h = 0; h < 2 * shape.num_key_heads; ++h) {
    loops.normalise(x + int64_t{h} * shape.key_dim,
                    shape.key_dim,
                    kNormEps,
                    h < shape.num_key_heads ? scale : 1.0F);
  }
  const float* ba = a.ba.f32().row(tok);
  const int32_t heads = shape.num_value_heads;
  const int32_t each = heads / shape.num_key_heads;
  float* gates = a.gates + tok * 2 * heads;
  for (int32_t h = 0; h < heads; ++h) {
    const int32_t b = a.ba_by_key_head ? h / each * 2 * each + h % each : h;
    const int32_t apart = a.ba_by_key_head ? each : heads;
    gates[h] = std::exp(a.rate[h] * softplus(ba[b + apart] + a.dt_bias[h]));
    gates[heads + h] = 1.0F / (1.0F + std::exp(-ba[b]));
  }
}

void run_head(
    const GatedDeltaArgs& a, const Loops& loops, int64_t batch_idx, int32_t head, float* local) {
  const GatedDeltaShape& shape = a.shape;
  const RowStates row = row_states(a, batch_idx);
  const View<float, 2> x = a.qkvz.f32();
  const View<float, 2> out = a.out.f32();
  const int64_t key = int64_t{shape.key_head(head)} * shape.key_dim;
  const int64_t value = int64_t{head} * shape.value_dim;
  advance(a,
          row,
          shape.conv_floats() + head * shape.head_floats(),
          shape.head_floats(),
          1,
          0,
          local,
          [&](int64_t tok, int64_t num_toks) {
            const float* in = x.row(tok);
            const float* gates = a.gates + tok * 2 * shape.num_value_heads + head;
            loops.delta({in + key,
                         in + shape.key_size() + key,
                         in + 2 * shape.key_size() + value,
                         x.stride[0],
                         gates,
                         gates + shape.num_value_heads,
                         2 * int64_t{shape.num_value_heads},
                         local,
                         out.row(tok) + value,
                         out.stride[0],
                         shape.key_dim,
                         shape.value_dim},
                        num_toks);
          });
}

void finish(const GatedDeltaArgs& a, const Loops& loops, int64_t tok) {
  const GatedDeltaShape& shape = a.shape;
  const float* z = a.qkvz.f32().row(tok) + shape.num_channels();
  float* out = a.out.f32().row(tok);
  for (int32_t h = 0; h < shape.num_value_heads; ++h) {
    const int64_t at = int64_t{h} * shape.value_dim;
    loops.gated_norm(out + at, a.norm_weight.data, z + at, shape.value_dim, a.norm_eps);
  }
}

}  // namespace

void gated_delta(Stream& stream, const GatedDeltaArgs& args) {
  const GatedDeltaShape& shape = args.shape;
  const int64_t toks = args.out.shape[0];
  WR_CHECK_EQ(args.qkvz.shape[0], toks);
  const bool of_drafts = !args.num_sampled.empty();
  WR_CHECK_EQ(args.qkvz.shape[1], shape.num_channels() + (of_drafts ? 0 : shape.value_size()));
  WR_CHECK(!of_drafts || !args.cu_num_logits.empty());
  WR_CHECK_EQ(args.ba.shape[1], 2 * int64_t{shape.num_value_heads});
  WR_CHECK_EQ(args.out.shape[1], shape.value_size());
  WR_CHECK(shape.conv_len >= 2 && shape.conv_len <= kMaxConvLen &&
               shape.num_value_heads % shape.num_key_heads == 0,
           "sizes of a gated delta net");
  WR_CHECK_GE(args.pages.num_pages * args.pages.page_floats, shape.state_floats());
  const Loops loops{WR_ISA_PICK(conv_tokens),
                    WR_ISA_PICK(delta_tokens),
                    WR_ISA_PICK(l2_normalise),
                    WR_ISA_PICK(gated_norm)};
  CpuStream& cpu = as_cpu(stream);
  cpu.launch("delta_conv", [args, loops](ComputePool& pool) {
    const int64_t pieces = (args.shape.num_channels() + kConvChannels - 1) / kConvChannels;
    pool.parallel_for(num_rows(args) * pieces, 4, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) {
        convolve(args, loops, i / pieces, i % pieces);
      }
    });
  });
  cpu.launch("delta_prepare", [args, loops, toks, of_drafts](ComputePool& pool) {
    if (of_drafts) {
      pool.parallel_for(num_rows(args), 1, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t i = begin; i < end; ++i) {
          const RowStates row = row_states(args, i);
          for (int64_t tok = row.first_tok; tok < row.first_tok + row.num_toks; ++tok) {
            prepare(args, loops, tok);
          }
        }
      });
      return;
    }
    pool.parallel_for(toks, 8, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t tok = begin; tok < end; ++tok) {
        prepare(args, loops, tok);
      }
    });
  });
  cpu.launch("delta_rule", [args, loops](ComputePool& pool) {
    const int64_t heads = args.shape.num_value_heads;
    pool.parallel_for(num_rows(args) * heads, 1, [&](int64_t begin, int64_t end, int32_t worker) {
      float* local = args.scratch + worker * args.shape.head_floats();
      for (int64_t i = begin; i < end; ++i) {
        run_head(args, loops, i / heads, static_cast<int32_t>(i % heads), local);
      }
    });
  });
  if (of_drafts) {
    return;
  }
  cpu.launch("delta_norm", [args, loops, toks](ComputePool& pool) {
    pool.parallel_for(toks, 8, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t tok = begin; tok < end; ++tok) {
        finish(args, loops, tok);
      }
    });
  });
}

}  // namespace warprow::cpu
