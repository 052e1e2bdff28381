// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include "base/check.h"
#include "base/math.h"
#include "kernels/low_rank/low_rank.h"

#include <cstddef>
#include <iterator>
#include <utility>

namespace warprow {

namespace {

// The biases of all parts, one after the other, zeros where a part has none; empty if no part has.
std::vector<float> stacked_bias(const ParameterLoader& loader,
                                const std::vector<LinearPart>& parts) {
  std::vector<float> bias;
  bool any = false;
  for (const LinearPart& part : parts) {
    if (part.bias.empty()) {
      const IndexRange rows = value_or_throw(shard_rows(part.weight, {}));
      bias.resize(bias.size() + static_cast<size_t>(rows.count));
      continue;
    }
    const std::vector<float> values = loader.read_vector(bias_spec(part.weight, part.bias));
    bias.insert(bias.end(), values.begin(), values.end());
    any = true;
  }
  return any ? bias : std::vector<float>();
}

std::vector<TensorSpec> weights_of(const std::vector<LinearPart>& parts) {
  std::vector<TensorSpec> weights;
  weights.reserve(parts.size());
  for (const LinearPart& part : parts) {
    weights.push_back(part.weight);
  }
  return weights;
}

// n rows of x, from `first` on.
ConstActView rows_of(const ConstActView& x, int64_t first, int64_t n) {
  ConstActView part = x;
  part.data = static_cast<const std::byte*>(x.data) +
              first * x.stride * static_cast<int64_t>(dtype_bytes(x.dtype));
  part.shape[0] = n;
  return part;
}

}  // namespace

Linear::Linear(ParameterLoader& loader,
               const std::vector<LinearPart>& parts,
               const LinearMode& mode) {
  args_.act = mode.act;
  args_.batch_invariant = mode.batch_invariant;
  const std::vector<TensorSpec> weights = weights_of(parts);
  if (loader.stacks(weights)) {
    load_stacked(loader, weights, stacked_bias(loader, parts));
  } else {
    load_segments(loader, parts);
  }
}

void Linear::load_stacked(ParameterLoader& loader,
                          const std::vector<TensorSpec>& weights,
                          std::vector<float> bias) {
  args_.num_segments = 1;
  args_.segments[0].w = loader.stacked(weights);
  num_outputs_ = args_.segments[0].w.n;
  if (!bias.empty()) {
    args_.segments[0].bias = loader.constants(std::move(bias)).data;
  }
}

void Linear::load_segments(ParameterLoader& loader, const std::vector<LinearPart>& parts) {
  WR_CHECK_LE(parts.size(), std::size(args_.segments));
  for (const LinearPart& part : parts) {
    LinearSegment& segment = args_.segments[args_.num_segments++];
    segment.w = loader.matrix(part.weight);
    segment.y_col = num_outputs_;
    if (!part.bias.empty()) {
      segment.bias = loader.vector(bias_spec(part.weight, part.bias)).data;
    }
    num_outputs_ += segment.w.n;
  }
}

Linear::Linear(const PackedWeight& weight, const LinearMode& mode) : num_outputs_(weight.n) {
  args_.act = mode.act;
  args_.batch_invariant = mode.batch_invariant;
  args_.num_segments = 1;
  args_.segments[0].w = weight;
}

const LinearSegment& Linear::only_segment() const {
  WR_CHECK_EQ(args_.num_segments, 1);
  return args_.segments[0];
}

LinearShape Linear::shape(DType y, LinearEpilogue epilogue) const {
  const LinearSegment& segment = args_.segments[0];
  return {static_cast<int32_t>(num_outputs_),
          segment.w.k,
          y,
          epilogue,
          segment.bias != nullptr,
          args_.batch_invariant,
          segment.w.kind};
}

void Linear::forward(Stream& stream,
                     const LinearInput& in,
                     ActView y,
                     LinearEpilogue epilogue,
                     const LinearWorkspace& workspace,
                     const HalfNorm* next_norm) const {
  const int64_t toks = in.x.shape[0];
  LinearArgs args = args_;
  args.x = in.x;
  args.y = y;
  args.epilogue = epilogue;
  args.scratch = workspace.scratch;
  args.next_norm = next_norm;
  if (!in.norm_weight.empty()) {
    args.norm_weight = in.norm_weight;
    args.norm_eps = in.norm_eps;
    args.half_norm = in.half_norm;
    args.normed = {workspace.normed.dtype, workspace.normed.data, toks, in.x.shape[1]};
  }
  if (epilogue != LinearEpilogue::kStore) {
    args.product = {workspace.product.dtype, workspace.product.data, toks, num_outputs_};
  }
  if (site_ >= 0 && workspace.delta != nullptr && workspace.delta->active()) {
    run_with_delta(stream, args, workspace);
    return;
  }
  linear(stream, args);
}

bool Linear::leaves_maxima(const DeviceFacts& device, int64_t num_rows) const {
  return args_.num_segments == 1 && site_ < 0 &&
         warprow::leaves_maxima(device, shape(DType::kF32, LinearEpilogue::kMax), num_rows);
}

void Linear::forward_maxima(Stream& stream,
                            const ConstActView& x,
                            const View<OutputMax, 2>& maxima,
                            const LinearWorkspace& workspace) const {
  LinearArgs args = args_;
  args.x = x;
  args.y = ActView(DType::kF32, nullptr, x.shape[0], num_outputs_);
  args.epilogue = LinearEpilogue::kMax;
  args.maxima = maxima;
  args.scratch = workspace.scratch;
  linear(stream, args);
}

// A sum's delta goes to y in front of the product, whose epilogue then begins the next norm with both.
void Linear::run_with_delta(Stream& stream,
                            const LinearArgs& args,
                            const LinearWorkspace& workspace) const {
  LinearDelta& delta = *workspace.delta;
  HalfNorm norm{args.norm_weight, args.normed, nullptr, false};
  if (args.half_norm != nullptr && args.half_norm->begun) {
    norm = *args.half_norm;
  }
  const LowRankHalves halves = args.num_segments == 1 && args.segments[0].y_col == 0
                                   ? low_rank_halves(stream.device().facts(),
                                                     shape(args.y.dtype, args.epilogue),
                                                     args.x.shape[0],
                                                     delta.product(site_),
                                                     norm.begun || args.norm_weight.empty())
                                   : LowRankHalves::kNone;
  delta.read(stream, site_, args.x, norm, args.norm_eps, halves == LowRankHalves::kBoth);
  if (halves != LowRankHalves::kNone) {
    LinearArgs with_term = args;
    with_term.term = &delta.term();
    linear(stream, with_term);
    return;
  }
  switch (args.epilogue) {
    case LinearEpilogue::kAdd:
      delta.add(stream, args.y);
      linear(stream, args);
      break;
    case LinearEpilogue::kStore:
      linear(stream, args);
      delta.add(stream, args.y);
      break;
    case LinearEpilogue::kSwiGlu:
      run_gated_with_delta(stream, args, workspace);
      break;
    case LinearEpilogue::kMax:
      WR_CHECK(false, "a delta of maxima");
  }
}

// The gate comes after the delta, so the product is stored in float32 first, which has the bits that the fused epilogue
// reads. A step of more tokens than there is room for is cut into equal parts.
void Linear::run_gated_with_delta(Stream& stream,
                                  const LinearArgs& args,
                                  const LinearWorkspace& workspace) const {
  const int64_t toks = args.x.shape[0];
  const ActView& room = workspace.gated.empty() ? workspace.product : workspace.gated;
  if (toks == 0) {
    return;
  }
  const int64_t num_parts = ceil_div(toks, room.shape[0]);
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t first = toks * part / num_parts;
    const int64_t count = toks * (part + 1) / num_parts - first;
    LinearArgs product = args;
    product.x = rows_of(args.x, first, count);
    HalfNorm half;
    if (args.half_norm != nullptr) {
      half = *args.half_norm;
      half.rows = half.rows.rows(first, count);
      // More than one part has more rows than have quartered sums.
      half.squares += first * (args.x.shape[1] / 64);
      product.half_norm = &half;
    }
    product.normed = args.normed.empty() ? args.normed : args.normed.rows(first, count);
    product.y = {room.dtype, room.data, count, num_outputs_};
    product.epilogue = LinearEpilogue::kStore;
    product.product = {};
    linear(stream, product);
    workspace.delta->add_gated(stream, first, product.y, args.y.rows(first, count));
  }
}

}  // namespace warprow
