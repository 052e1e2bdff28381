// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear.h"

#include "base/check.h"
#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/add/add_rows.h"
#include "kernels/linear/cpu/panel_kernels.h"
#include "kernels/linear/cpu/panel_layout.h"
#include "kernels/norm/rms_norm.h"

#include <algorithm>
#include <cstdint>

namespace warprow {
namespace {

using cpu::ActGroup;

// Layout of the rounded rows of x in scratch: all q, then all groups of 32, then all groups of 16, then all
// bf16 rows, whose stride in elements is the q rows' stride.
struct ActLayout {
  int64_t q_stride = 0;     // bytes; also elements
  int64_t groups = 0;       // of 32 inputs, in a row
  int64_t by32_offset = 0;  // bytes
  int64_t by16_offset = 0;
  int64_t bf16_offset = 0;
  int64_t total_bytes = 0;
};

ActLayout act_layout(int64_t num_toks, int64_t k) {
  ActLayout layout;
  layout.q_stride = round_up<int64_t>(k, 64);
  layout.groups = ceil_div<int64_t>(k, 32);
  layout.by32_offset = num_toks * layout.q_stride;
  const auto group_bytes = static_cast<int64_t>(sizeof(ActGroup));
  layout.by16_offset =
      layout.by32_offset + round_up<int64_t>(num_toks * layout.groups * group_bytes, 64);
  layout.bf16_offset =
      layout.by16_offset + round_up<int64_t>(num_toks * layout.groups * 2 * group_bytes, 64);
  layout.total_bytes = layout.bf16_offset + num_toks * layout.q_stride * 2;
  return layout;
}

bool uses_int8(const LinearArgs& args, const LinearSegment& segment) {
  return args.act == ActFormat::kRounded && cpu::is_quantised(segment.w.kind);
}
bool uses_bf16(const LinearArgs& args, const LinearSegment& segment) {
  return args.act == ActFormat::kRounded && segment.w.kind == PackedKind::kBF16;
}

// The formats that the segments need x in.
struct Roundings {
  bool int8 = false;
  bool by16 = false;  // int8, also with sums of 16 inputs
  bool bf16 = false;
};
Roundings roundings_of(const LinearArgs& args) {
  Roundings needed;
  for (int s = 0; s < args.num_segments; ++s) {
    const LinearSegment& segment = args.segments[s];
    needed.int8 |= uses_int8(args, segment);
    needed.by16 |= uses_int8(args, segment) && segment.w.group == 16;
    needed.bf16 |= uses_bf16(args, segment);
  }
  return needed;
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
  const Roundings needed = roundings_of(args);
  WR_CHECK(!(needed.int8 || needed.bf16) || args.scratch != nullptr);
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
        acts_(act_layout(num_toks_, k_)) {}

  void run() {
    const Roundings needed = roundings_of(args_);
    if (needed.int8 || needed.bf16) {
      round_all(needed);
    }
    int64_t num_pairs = 0;
    for (int s = 0; s < args_.num_segments; ++s) {
      first_pair_[s] = num_pairs;
      num_pairs += ceil_div<int64_t>(args_.segments[s].w.n, kPairOutputs);
    }
    first_pair_[args_.num_segments] = num_pairs;
    const int64_t grain = std::clamp<int64_t>(ceil_div(num_pairs, num_pieces()), 1, kMaxGrain);
    pool_.parallel_for(num_pairs, grain, [this](int64_t begin, int64_t end, int32_t /*worker*/) {
      piece(begin, end);
    });
  }

 private:
  static constexpr int64_t kPairOutputs = 2 * cpu::kPanelRows;
  static constexpr int64_t kMaxGrain = 64;
  static constexpr int64_t kSerialElems = 8192;  // below this, waking the pool costs more

  // Number of pieces of a pass. With few rows the weights stream from memory and every new piece starts with
  // a few cold cache lines, so pieces are few. With many rows a piece takes long, and small pieces balance
  // better.
  [[nodiscard]] int64_t num_pieces() const {
    return (num_toks_ <= 16 ? 3 : 16) * int64_t{pool_.num_workers()};
  }

  void round_all(const Roundings& needed) {
    const auto rows = [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        if (needed.bf16) {
          kernels_.round_row(x_.row(t), k_, bf16_rows() + t * acts_.q_stride);
        }
        if (needed.int8) {
          kernels_.quantise_row(x_.row(t),
                                k_,
                                q_rows() + t * acts_.q_stride,
                                by32() + t * acts_.groups,
                                needed.by16 ? by16() + t * acts_.groups * 2 : nullptr);
        }
      }
    };
    if (num_toks_ * k_ <= kSerialElems) {
      rows(0, num_toks_, 0);
    } else {
      pool_.parallel_for(num_toks_, ceil_div(num_toks_, num_pieces()), rows);
    }
  }

  // Pairs of panels [begin, end), counted over all segments.
  void piece(int64_t begin, int64_t end) const {
    for (int s = 0; s < args_.num_segments; ++s) {
      const int64_t first = std::max(begin, first_pair_[s]);
      const int64_t last = std::min(end, first_pair_[s + 1]);
      if (first < last) {
        run_panels(args_.segments[s], (first - first_pair_[s]) * 2, (last - first_pair_[s]) * 2);
      }
    }
  }

  void run_panels(const LinearSegment& segment, int64_t first, int64_t last) const {
    const cpu::PanelJob job = make_job(segment, first, last);
    if (uses_bf16(args_, segment)) {
      kernels_.bf16_panels(job, {bf16_rows(), acts_.q_stride});
    } else if (!uses_int8(args_, segment)) {
      kernels_.float_panels(job, {x_.data, x_.stride[0]});
    } else if (segment.w.group == 16) {
      kernels_.int8_panels(job, {q_rows(), acts_.q_stride, by16(), acts_.groups * 2});
    } else {
      kernels_.int8_panels(job, {q_rows(), acts_.q_stride, by32(), acts_.groups});
    }
  }

  cpu::PanelJob make_job(const LinearSegment& segment, int64_t first, int64_t last) const {
    const PackedWeight& w = segment.w;
    const cpu::PanelLayout layout = cpu::panel_layout(w);
    last = std::min(last, layout.num_panels);
    const int64_t first_output = first * cpu::kPanelRows;
    cpu::PanelJob job{};
    job.kind = w.kind;
    job.has_bias = w.has_bias;
    job.scales = w.scales;
    job.zero_point = w.zero_point;
    job.group = w.group;
    job.k = w.k;
    job.panels = w.data + first * layout.panel_bytes;
    job.panel_bytes = layout.panel_bytes;
    job.scales_offset = layout.scales_offset;
    job.scale_group_bytes = layout.scale_group_bytes;
    job.split_bytes = layout.split_bytes;
    job.num_panels = last - first;
    job.num_outputs = std::min<int64_t>(w.n, last * cpu::kPanelRows) - first_output;
    job.out_bias = segment.bias == nullptr ? nullptr : segment.bias + first_output;
    job.y = y_.data + segment.y_col + first_output;
    job.y_stride = y_.stride[0];
    job.num_rows = num_toks_;
    return job;
  }

  uint16_t* bf16_rows() const {
    return reinterpret_cast<uint16_t*>(args_.scratch + acts_.bf16_offset);
  }
  int8_t* q_rows() const { return reinterpret_cast<int8_t*>(args_.scratch); }
  ActGroup* by32() const { return reinterpret_cast<ActGroup*>(args_.scratch + acts_.by32_offset); }
  ActGroup* by16() const { return reinterpret_cast<ActGroup*>(args_.scratch + acts_.by16_offset); }

  const LinearArgs& args_;
  cpu::ComputePool& pool_;
  const cpu::PanelKernels& kernels_;
  int64_t num_toks_;
  int64_t k_;
  View<const float, 2> x_;
  View<float, 2> y_;
  ActLayout acts_;
  int64_t first_pair_[kMaxLinearSegments + 1] = {};
};

}  // namespace

size_t cpu::linear_scratch_bytes(int64_t max_toks, int64_t max_k) {
  return static_cast<size_t>(act_layout(max_toks, max_k).total_bytes);
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
  check_args(product);
  as_cpu(stream).launch("linear", [product](ComputePool& pool) { LinearRun(product, pool).run(); });
  if (args.epilogue == LinearEpilogue::kSwiGlu) {
    cpu::silu_and_mul(stream, {args.product, args.y});
  } else if (args.epilogue == LinearEpilogue::kAdd) {
    // Added in a separate pass, so that the rounding of a sum does not depend on the old y.
    cpu::add_rows(stream, {args.product.f32(), args.y.f32()});
  }
}

}  // namespace warprow
