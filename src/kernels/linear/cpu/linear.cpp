// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear.h"

#include "base/check.h"
#include "base/float8.h"
#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/add/add_rows.h"
#include "kernels/linear/cpu/panel_kernels.h"
#include "kernels/linear/cpu/panel_layout.h"
#include "kernels/linear/cpu/rounded_rows.h"
#include "kernels/norm/rms_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace warprow {
namespace {

cpu::RowForms forms_of(const LinearArgs& args) {
  cpu::RowForms forms;
  for (int s = 0; s < args.num_segments; ++s) {
    forms.add(args.segments[s].w, args.act);
  }
  return forms;
}

void check_args(const LinearArgs& args) {
  WR_CHECK(args.num_segments >= 1 && args.num_segments <= kMaxLinearSegments,
           "{} segments",
           args.num_segments);
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  for (int s = 0; s < args.num_segments; ++s) {
    const LinearSegment& segment = args.segments[s];
    WR_CHECK_EQ(segment.w.k, args.x.shape[1]);
    WR_CHECK(segment.y_col >= 0 && segment.y_col + segment.w.n <= args.y.shape[1],
             "segment {}: columns {} + {} of {}",
             s,
             segment.y_col,
             segment.w.n,
             args.y.shape[1]);
  }
  const bool rounds = args.segments[0].w.inputs != F8Inputs::kNone;
  WR_CHECK(!(forms_of(args).any() || rounds) || args.scratch != nullptr);
  WR_CHECK(!rounds || args.act == ActFormat::kF32);
}

// A row's inputs as products with e4m3 weights round them (kernels/linear/fp8/round_inputs.h).
void round_to_f8(const PackedWeight& w, const float* x, int64_t k, float* out) {
  const int64_t span = w.inputs == F8Inputs::kGroup ? 128 : k;
  for (int64_t first = 0; first < k; first += span) {
    const int64_t end = std::min(k, first + span);
    float factor = 1.0F / w.input_scale;
    float scale = w.input_scale;
    if (w.inputs != F8Inputs::kStatic) {
      float most = 0x1p-100F;
      for (int64_t i = first; i < end; ++i) {
        most = std::max(most, std::fabs(x[i]));
      }
      factor = kMaxF8E4M3 / most;
      scale = most / kMaxF8E4M3;
    }
    for (int64_t i = first; i < end; ++i) {
      out[i] = f8_e4m3_to_f32(f32_to_f8_e4m3(x[i] * factor)) * scale;
    }
  }
}

bool same_inputs(const PackedWeight& a, const PackedWeight& b) {
  return a.inputs == b.inputs && (a.inputs != F8Inputs::kStatic || a.input_scale == b.input_scale);
}

// Runs one linear operation on the pool.
class LinearRun {
 public:
  LinearRun(const LinearArgs& args, cpu::ComputePool& pool)
      : args_(args),
        pool_(pool),
        kernels_(cpu::panel_kernels()),
        num_toks_(args.x.shape[0]),
        k_(args.x.shape[1]),
        x_(args.x.f32()),
        y_(args.y.f32()),
        tile_rows_(cpu::RoundedRows::tile_rows(kernels_, num_toks_)),
        rows_(args.scratch, num_toks_, k_, tile_rows_) {}

  void run() {
    if (args_.segments[0].w.inputs != F8Inputs::kNone) {
      round_inputs();
    }
    if (const cpu::RowForms forms = forms_of(args_); forms.any()) {
      round_all(forms);
    }
    int64_t num_pairs = 0;
    for (int s = 0; s < args_.num_segments; ++s) {
      first_pair_[s] = num_pairs;
      num_pairs += ceil_div<int64_t>(args_.segments[s].w.n, kPairOutputs);
    }
    first_pair_[args_.num_segments] = num_pairs;
    const int64_t block_rows = rows_of_block();
    const int64_t items = ceil_div(num_toks_, block_rows) * num_pairs;
    const int64_t grain = std::clamp<int64_t>(ceil_div(items, num_pieces()), 1, kMaxGrain);
    cpu::parallel_for_with_affinity(
        pool_, items, grain, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
          while (begin < end) {
            const int64_t pair = begin % num_pairs;
            const int64_t count = std::min(end - begin, num_pairs - pair);
            const int64_t row = begin / num_pairs * block_rows;
            piece(pair, pair + count, row, std::min(num_toks_, row + block_rows));
            begin += count;
          }
        });
  }

 private:
  static constexpr int64_t kPairOutputs = 2 * cpu::kPanelRows;
  static constexpr int64_t kMaxGrain = 64;
  static constexpr int64_t kMinBlockRows = 64;      // for which each worker reads the weights
  static constexpr int64_t kSharedBytes = 4 << 20;  // of weights that each worker may read
  static constexpr int64_t kSerialElems = 8192;     // below this, waking the pool costs more

  // Rows that are multiplied together. Each worker has blocks of its own if that costs little: then the rows, and later the
  // products for the next operation, are in its core's cache.
  [[nodiscard]] int64_t rows_of_block() const {
    int64_t num_blocks = ceil_div(num_toks_, kernels_.block_rows);
    int64_t weight_bytes = 0;
    bool tiles = tile_rows_ > 0;
    for (int s = 0; s < args_.num_segments; ++s) {
      const PackedWeight& w = args_.segments[s].w;
      weight_bytes += int64_t{w.n} * w.k * 2;
      tiles = tiles && w.kind == PackedKind::kBF16;
    }
    const int64_t workers = pool_.num_workers();
    if (tiles && weight_bytes <= kSharedBytes && num_toks_ >= kMinBlockRows * workers) {
      num_blocks = round_up(num_blocks, workers);
    }
    const int64_t rows = ceil_div(num_toks_, num_blocks);
    return tile_rows_ > 0 ? round_up(rows, 2 * tile_rows_) : rows;
  }

  // Number of pieces of a pass. With few rows the weights stream from memory and every new piece starts with
  // a few cold cache lines, so pieces are few. With many rows a piece takes long, and small pieces balance
  // better.
  [[nodiscard]] int64_t num_pieces() const {
    return (num_toks_ <= 16 ? 3 : 16) * int64_t{pool_.num_workers()};
  }

  // Puts rounded inputs in the place of x, in scratch that exact products do not use.
  void round_inputs() {
    float* rounded = rows_.floats();
    pool_.parallel_for(num_toks_,
                       ceil_div(num_toks_, num_pieces()),
                       [&](int64_t begin, int64_t end, int32_t /*worker*/) {
                         for (int64_t t = begin; t < end; ++t) {
                           round_to_f8(args_.segments[0].w, x_.row(t), k_, rounded + t * k_);
                         }
                       });
    x_ = make_strided<const float>(rounded, num_toks_, k_, k_);
  }

  void round_all(const cpu::RowForms& forms) {
    const auto rows = [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        rows_.round(kernels_, forms, x_.row(t), t);
      }
    };
    if (num_toks_ * k_ <= kSerialElems) {
      rows(0, num_toks_, 0);
    } else {
      cpu::parallel_for_with_affinity(pool_, num_toks_, ceil_div(num_toks_, num_pieces()), rows);
    }
  }

  // Pairs of panels [begin, end), counted over all segments, of rows [row, end_row).
  void piece(int64_t begin, int64_t end, int64_t row, int64_t end_row) const {
    for (int s = 0; s < args_.num_segments; ++s) {
      const int64_t first = std::max(begin, first_pair_[s]);
      const int64_t last = std::min(end, first_pair_[s + 1]);
      if (first < last) {
        run_panels(args_.segments[s],
                   (first - first_pair_[s]) * 2,
                   (last - first_pair_[s]) * 2,
                   row,
                   end_row);
      }
    }
  }

  void run_panels(const LinearSegment& segment,
                  int64_t first,
                  int64_t last,
                  int64_t row,
                  int64_t end_row) const {
    const int64_t first_output = first * cpu::kPanelRows;
    cpu::PanelJob job = cpu::panel_job(segment.w, first, last);
    job.out_bias = segment.bias == nullptr ? nullptr : segment.bias + first_output;
    job.y = y_.row(row) + segment.y_col + first_output;
    job.y_stride = y_.stride[0];
    job.num_rows = end_row - row;
    rows_.multiply(kernels_, job, segment.w, args_.act, row, {x_.row(row), x_.stride[0]});
  }

  const LinearArgs& args_;
  cpu::ComputePool& pool_;
  const cpu::PanelKernels& kernels_;
  int64_t num_toks_;
  int64_t k_;
  View<const float, 2> x_;
  View<float, 2> y_;
  int64_t tile_rows_;
  cpu::RoundedRows rows_;
  int64_t first_pair_[kMaxLinearSegments + 1] = {};
};

}  // namespace

size_t cpu::linear_scratch_bytes(int64_t max_toks, int64_t max_k) {
  return RoundedRows::bytes(max_toks, max_k);
}

void cpu::linear(Stream& stream, const LinearArgs& args) {
  if (args.x.shape[0] == 0) {
    return;
  }
  LinearArgs product = args;
  if (!args.norm_weight.empty()) {
    cpu::rms_norm(stream, {args.x, args.norm_weight, args.normed, args.norm_eps});
    product.x = args.normed;
  }
  if (args.epilogue != LinearEpilogue::kStore) {
    product.y = args.product;
  }
  // Segments whose inputs are rounded alike run together.
  for (int first = 0; first < args.num_segments;) {
    LinearArgs part = product;
    part.num_segments = 0;
    for (int s = first;
         s < args.num_segments && same_inputs(product.segments[s].w, product.segments[first].w);
         ++s) {
      part.segments[part.num_segments++] = product.segments[s];
    }
    first += part.num_segments;
    check_args(part);
    as_cpu(stream).launch("linear", [part](ComputePool& pool) { LinearRun(part, pool).run(); });
  }
  if (args.epilogue == LinearEpilogue::kSwiGlu) {
    cpu::silu_and_mul(stream, {args.product, args.y});
  } else if (args.epilogue == LinearEpilogue::kAdd) {
    // Added in a separate pass, so that the rounding of a sum does not depend on the old y.
    cpu::add_rows(stream, {args.product.f32(), args.y.f32()});
  }
}

}  // namespace warprow
