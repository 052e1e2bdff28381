// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear.h"

#include "base/check.h"
#include "base/float8.h"
#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/activation/act_and_mul_loops.h"
#include "kernels/add/add_rows_loops.h"
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

// Where the product goes.
const ActView& product_of(const LinearArgs& args) {
  return args.epilogue == LinearEpilogue::kStore ? args.y : args.product;
}

void check_args(const LinearArgs& args) {
  WR_CHECK(args.num_segments >= 1 && args.num_segments <= kMaxLinearSegments,
           "{} segments",
           args.num_segments);
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  const ActView& product = product_of(args);
  WR_CHECK_EQ(args.x.shape[0], product.shape[0]);
  for (int s = 0; s < args.num_segments; ++s) {
    const LinearSegment& segment = args.segments[s];
    WR_CHECK_EQ(segment.w.k, args.x.shape[1]);
    WR_CHECK(segment.y_col >= 0 && segment.y_col + segment.w.n <= product.shape[1],
             "segment {}: columns {} + {} of {}",
             s,
             segment.y_col,
             segment.w.n,
             product.shape[1]);
  }
  if (args.epilogue == LinearEpilogue::kAdd) {
    WR_CHECK_EQ(args.y.shape[1], product.shape[1]);
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

constexpr int64_t kPairOutputs = 2 * cpu::kPanelRows;

// Whether one pass computes gate and up, and their pairs of panels lie in the product as they are counted, so that the same
// pair of both is one piece of work.
bool gates_by_pair(const LinearArgs& args) {
  int64_t col = 0;
  for (int s = 0; s < args.num_segments; ++s) {
    const PackedWeight& w = args.segments[s].w;
    if (args.segments[s].y_col != col || w.n % kPairOutputs != 0 ||
        !same_inputs(w, args.segments[0].w)) {
      return false;
    }
    col += args.segments[s].w.n;
  }
  return col % (2 * kPairOutputs) == 0 && col == args.product.shape[1];
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
        product_(product_of(args).f32()),
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
    // With SwiGLU a place is a pair of panels of gate outputs and the pair of up outputs that belongs to it.
    const bool gates = args_.epilogue == LinearEpilogue::kSwiGlu;
    const int64_t num_places = gates ? num_pairs / 2 : num_pairs;
    const int64_t block_rows = rows_of_block();
    const int64_t items = ceil_div(num_toks_, block_rows) * num_places;
    const int64_t grain = std::clamp<int64_t>(ceil_div(items, num_pieces()), 1, kMaxGrain);
    const bool in_strips =
        args_.epilogue != LinearEpilogue::kStore && num_toks_ > kFewRows && !kernels_.takes_tiles;
    const int64_t strip = in_strips ? 1 : grain;
    make_rooms(block_rows * strip * (gates ? 2 : 1) * kPairOutputs);
    cpu::parallel_for_with_affinity(
        pool_, items, grain, [&](int64_t begin, int64_t end, int32_t worker) {
          while (begin < end) {
            const int64_t place = begin % num_places;
            const int64_t count = std::min({end - begin, num_places - place, strip});
            const int64_t row = begin / num_places * block_rows;
            const Part part{place, place + count, row, std::min(num_toks_, row + block_rows)};
            switch (args_.epilogue) {
              case LinearEpilogue::kStore:
                store(part);
                break;
              case LinearEpilogue::kAdd:
                add(part, worker);
                break;
              case LinearEpilogue::kSwiGlu:
                gate(part, worker);
                break;
              case LinearEpilogue::kMax:
                WR_CHECK(false, "maxima on a CPU");
            }
            begin += count;
          }
        });
  }

 private:
  static constexpr int64_t kMaxGrain = 64;
  static constexpr int64_t kFewRows = 16;
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
    return (num_toks_ <= kFewRows ? 3 : 16) * int64_t{pool_.num_workers()};
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

  // Pairs of panels, counted over all segments, of some rows.
  struct Part {
    int64_t begin;
    int64_t end;
    int64_t row;
    int64_t end_row;
  };

  // Calls f(segment, first pair in it, end) for the part's segments.
  template <typename F>
  void for_each_segment(const Part& part, const F& f) const {
    for (int s = 0; s < args_.num_segments; ++s) {
      const int64_t first = std::max(part.begin, first_pair_[s]);
      const int64_t last = std::min(part.end, first_pair_[s + 1]);
      if (first < last) {
        f(args_.segments[s], first - first_pair_[s], last - first_pair_[s]);
      }
    }
  }

  struct Rows {
    float* data;
    int64_t stride;
  };
  static Rows rows_at(const View<float, 2>& y, int64_t row, int64_t col) {
    return {y.row(row) + col, y.stride[0]};
  }

  // Divides the product's memory among the workers if a share holds a part. A part's rows then lie close together and stay in
  // the worker's cache. Otherwise each part is stored at its own place in the product.
  void make_rooms(int64_t part_floats) {
    const int64_t share = num_toks_ * product_.shape[1] / pool_.num_workers();
    const bool fits = product_.stride[0] == product_.shape[1] && part_floats <= share;
    room_floats_ = fits ? share : 0;
  }
  [[nodiscard]] Rows room_for(const Part& part, int64_t col, int64_t width, int32_t worker) const {
    return room_floats_ > 0 ? Rows{product_.data + worker * room_floats_, width}
                            : rows_at(product_, part.row, col);
  }

  void store(const Part& part) const {
    for_each_segment(part, [&](const LinearSegment& segment, int64_t first, int64_t last) {
      const Rows to = rows_at(y_, part.row, segment.y_col + first * kPairOutputs);
      multiply(segment, first, last, part, to);
    });
  }

  void add(const Part& part, int32_t worker) const {
    const auto add_row = WR_ISA_PICK(cpu::add_row);
    for_each_segment(part, [&](const LinearSegment& segment, int64_t first, int64_t last) {
      const int64_t col = segment.y_col + first * kPairOutputs;
      const Rows room = room_for(part, col, (last - first) * kPairOutputs, worker);
      const int64_t width = multiply(segment, first, last, part, room);
      for (int64_t t = part.row; t < part.end_row; ++t) {
        add_row(room.data + (t - part.row) * room.stride, 1.0F, width, y_.row(t) + col);
      }
    });
  }

  void gate(const Part& part, int32_t worker) const {
    const auto silu_and_mul_row = WR_ISA_PICK(cpu::silu_and_mul_row);
    const int64_t num_gates = first_pair_[args_.num_segments] / 2;  // pairs of panels
    const int64_t width = (part.end - part.begin) * kPairOutputs;
    const int64_t col = part.begin * kPairOutputs;
    const Rows room = room_for(part, col, 2 * width, worker);
    const int64_t up = room_floats_ > 0 ? width : num_gates * kPairOutputs;
    const auto multiply_pairs = [&](const Part& pairs, float* to) {
      for_each_segment(pairs, [&](const LinearSegment& segment, int64_t first, int64_t last) {
        multiply(segment, first, last, pairs, {to, room.stride});
        to += (last - first) * kPairOutputs;
      });
    };
    multiply_pairs(part, room.data);
    multiply_pairs({num_gates + part.begin, num_gates + part.end, part.row, part.end_row},
                   room.data + up);
    for (int64_t t = part.row; t < part.end_row; ++t) {
      const float* gates = room.data + (t - part.row) * room.stride;
      silu_and_mul_row(gates, gates + up, static_cast<int32_t>(width), y_.row(t) + col);
    }
  }

  // Returns the number of outputs.
  int64_t multiply(const LinearSegment& segment,
                   int64_t first,
                   int64_t last,
                   const Part& part,
                   const Rows& to) const {
    cpu::PanelJob job = cpu::panel_job(segment.w, first * 2, last * 2);
    job.out_bias = segment.bias == nullptr ? nullptr : segment.bias + first * kPairOutputs;
    job.y = to.data;
    job.y_stride = to.stride;
    job.num_rows = part.end_row - part.row;
    rows_.multiply(kernels_, job, segment.w, args_.act, part.row, {x_.row(part.row), x_.stride[0]});
    return job.num_outputs;
  }

  const LinearArgs& args_;
  cpu::ComputePool& pool_;
  const cpu::PanelKernels& kernels_;
  int64_t num_toks_;
  int64_t k_;
  View<const float, 2> x_;
  View<float, 2> product_;
  View<float, 2> y_;
  int64_t tile_rows_;
  cpu::RoundedRows rows_;
  int64_t first_pair_[kMaxLinearSegments + 1] = {};
  int64_t room_floats_ = 0;  // of each worker; 0: parts have their places in the product
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
  const bool gates_later = args.epilogue == LinearEpilogue::kSwiGlu && !gates_by_pair(args);
  if (gates_later) {
    product.epilogue = LinearEpilogue::kStore;
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
  if (gates_later) {
    cpu::silu_and_mul(stream, {args.product, args.y});
  }
}

}  // namespace warprow
