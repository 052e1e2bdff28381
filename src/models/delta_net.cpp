// SPDX-License-Identifier: Apache-2.0
#include "models/delta_net.h"

#include "attention/forward_context.h"
#include "kernels/gather/gather_rows.h"
#include "layers/buffer_part.h"
#include "models/tensor_split.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace warprow {
namespace {

// Rows [first, first + rows) of a tensor.
LinearPart rows_of(const LayerLoader& layer,
                   const std::string& pattern,
                   int64_t tensor_rows,
                   int64_t first,
                   int64_t rows) {
  LinearPart part = layer.part(pattern, rows, layer.spec().hidden_size, {}, false);
  part.weight.slice = {tensor_rows, layer.spec().hidden_size, first, 0};
  return part;
}

// Queries, keys, values and gates of this rank's heads. A tensor ordered by key heads has them of each head together.
std::vector<LinearPart> in_parts(const LayerLoader& layer, const IndexRange& heads) {
  const DeltaSpec& whole = layer.whole().delta;
  const int64_t each = int64_t{whole.num_value_heads / whole.num_key_heads} * whole.value_dim;
  const int64_t keys = whole.key_dim;
  std::vector<LinearPart> parts;
  if (whole.qkvz_by_key_head) {
    const int64_t widths[] = {keys, keys, each, each};
    int64_t at = 0;
    for (const int64_t width : widths) {
      for (int64_t h = heads.begin; h < heads.begin + heads.count; ++h) {
        parts.push_back(rows_of(
            layer, layer.names().delta_qkvz, whole.in_size(), h * 2 * (keys + each) + at, width));
      }
      at += width;
    }
    return parts;
  }
  const std::pair<int64_t, int64_t> of_tensor[] = {
      {0, keys}, {whole.key_size(), keys}, {2 * whole.key_size(), each}};
  for (const auto& [first, width] : of_tensor) {
    parts.push_back(rows_of(layer,
                            layer.names().delta_qkv,
                            whole.num_channels(),
                            first + heads.begin * width,
                            heads.count * width));
  }
  parts.push_back(rows_of(
      layer, layer.names().delta_z, whole.value_size(), heads.begin * each, heads.count * each));
  return parts;
}

// b and a of this rank's value heads.
std::vector<LinearPart> ba_parts(const LayerLoader& layer, const IndexRange& heads) {
  const DeltaSpec& whole = layer.whole().delta;
  const int64_t each = whole.num_value_heads / whole.num_key_heads;
  if (whole.ba_by_key_head) {
    return {rows_of(layer,
                    layer.names().delta_ba,
                    2 * int64_t{whole.num_value_heads},
                    heads.begin * 2 * each,
                    heads.count * 2 * each)};
  }
  std::vector<LinearPart> parts;
  for (const std::string* name : {&layer.names().delta_b, &layer.names().delta_a}) {
    parts.push_back(
        rows_of(layer, *name, whole.num_value_heads, heads.begin * each, heads.count * each));
  }
  return parts;
}

// Values [first, first + count) of a vector.
std::vector<float> values_of(const LayerLoader& layer,
                             const std::string& pattern,
                             int64_t size,
                             int64_t first,
                             int64_t count) {
  TensorSpec spec{layer.name(pattern), 1, count};
  spec.slice = {1, size, 0, first};
  return layer.loader().read_vector(spec);
}

// The convolution's weights [conv_len, channels] of this rank's heads; the tensor is [channels, conv_len].
std::vector<float> load_conv(const LayerLoader& layer, const IndexRange& heads) {
  const DeltaSpec& whole = layer.whole().delta;
  const int64_t each = int64_t{whole.num_value_heads / whole.num_key_heads} * whole.value_dim;
  const int64_t keys = whole.key_dim;
  const IndexRange channels[] = {{heads.begin * keys, heads.count * keys},
                                 {whole.key_size() + heads.begin * keys, heads.count * keys},
                                 {2 * whole.key_size() + heads.begin * each, heads.count * each}};
  const auto len = static_cast<size_t>(whole.conv_len);
  const auto width = static_cast<size_t>(layer.mine().delta.num_channels());
  TensorSpec row{layer.name(layer.names().delta_conv), 1, whole.conv_len};
  std::vector<float> weights(len * width);
  size_t to = 0;
  for (const IndexRange& range : channels) {
    for (int64_t c = range.begin; c < range.begin + range.count; ++c, ++to) {
      row.slice = {whole.num_channels(), whole.conv_len, c, 0};
      const std::vector<float> values = layer.loader().read_vector(row);
      for (size_t j = 0; j < len; ++j) {
        weights[j * width + to] = values[j];
      }
    }
  }
  return weights;
}

}  // namespace

DeltaNet::DeltaNet(const LayerLoader& layer, const KvPlan& kv)
    : spec_(layer.mine().delta),
      layer_(layer.index()),
      group_(kv.layers[static_cast<size_t>(layer_)].group) {
  const DeltaSpec& whole = layer.whole().delta;
  const DecoderWeightNames& names = layer.names();
  ParameterLoader& loader = layer.loader();
  const IndexRange heads = delta_key_heads(whole, layer.ranks().place);
  const int64_t first = heads.begin * (whole.num_value_heads / whole.num_key_heads);
  const auto of_heads = [&](const std::string& pattern) {
    return values_of(layer, pattern, whole.num_value_heads, first, spec_.num_value_heads);
  };
  std::vector<LinearPart> parts = in_parts(layer, heads);
  const std::vector<LinearPart> of_ba = ba_parts(layer, heads);
  one_product_ = loader.device_kind() == DeviceKind::kCuda;
  if (one_product_) {
    parts.insert(parts.end(), of_ba.begin(), of_ba.end());
  }
  in_ = layer.stacked(parts);
  if (!one_product_) {
    ba_ = layer.linear(of_ba);
  }
  std::vector<float> rates = of_heads(names.delta_rate);
  for (float& rate : rates) {
    rate = whole.has_rates ? rate : -std::exp(rate);
  }
  const KvGroupSpec& group = kv.groups[static_cast<size_t>(group_)];
  args_.shape = static_cast<const GatedDeltaShape&>(spec_);
  args_.ba_by_key_head = whole.ba_by_key_head;
  args_.conv = loader.constants(load_conv(layer, heads)).data;
  args_.rate = loader.constants(std::move(rates)).data;
  args_.dt_bias = loader.constants(of_heads(names.delta_dt_bias)).data;
  args_.norm_weight = loader.vector({layer.name(names.delta_norm), 1, whole.value_dim});
  args_.norm_eps = layer.spec().rms_eps;
  args_.pages.page_floats =
      KvCacheSpec{kv.groups, 0}.page_bytes() / static_cast<int64_t>(sizeof(float));
  args_.pages.num_pages = group.state_pages;
  args_.pages.unit = group.block_size;
}

void DeltaNet::keep_drafts(Arena& arena, DType act_dtype, int64_t max_toks) {
  const int64_t width = spec_.num_channels() + 2 * int64_t{spec_.num_value_heads};
  const size_t bytes = static_cast<size_t>(max_toks * width) * dtype_bytes(act_dtype);
  drafts_ = ActView(act_dtype, arena.alloc_bytes(bytes), max_toks, width);
}

void DeltaNet::take_drafts(Stream& stream,
                           const AcceptedDrafts& drafts,
                           const DeltaWorkspace& workspace) const {
  const int64_t channels = spec_.num_channels();
  const KvLayerView& pages = drafts.kv_layers[static_cast<size_t>(layer_)];
  GatedDeltaArgs args = args_;
  args.qkvz = drafts_.columns(0, channels);
  args.ba = drafts_.columns(channels, 2 * int64_t{spec_.num_value_heads});
  args.idx_mapping = drafts.idx_mapping;
  args.query_start_loc = drafts.query_start_loc;
  args.seq_lens = drafts.seq_lens;
  args.cu_num_logits = drafts.cu_num_logits;
  args.num_sampled = drafts.num_sampled;
  args.pages.table = drafts.tables[static_cast<size_t>(group_)];
  args.pages.data = reinterpret_cast<float*>(pages.k);
  args.pages.page_stride = pages.block_stride;
  args.gates = workspace.gates;
  args.scratch = workspace.scratch;
  args.out = part_of(workspace.drafts_out, drafts_.shape[0], spec_.value_size());
  gated_delta(stream, args);
}

void DeltaNet::forward(Stream& stream,
                       const LinearInput& in,
                       const ActView& out,
                       const LinearWorkspace& linear,
                       const DeltaWorkspace& workspace) const {
  const int64_t toks = out.shape[0];
  const ForwardContext& context = forward_context(stream);
  const AttentionMetadata& metadata = context.groups[static_cast<size_t>(group_)].metadata;
  const KvLayerView& pages = context.kv_layers[static_cast<size_t>(layer_)];
  GatedDeltaArgs args = args_;
  const int64_t ba_size = 2 * int64_t{spec_.num_value_heads};
  const ActView all = part_of(workspace.in, toks, in_.num_outputs());
  in_.forward(stream, in, all, LinearEpilogue::kStore, linear);
  args.qkvz = all.columns(0, spec_.in_size());
  const ActView ba =
      one_product_ ? all.columns(spec_.in_size(), ba_size) : part_of(workspace.ba, toks, ba_size);
  if (!one_product_) {
    ba_.forward(stream, in, ba, LinearEpilogue::kStore, linear);
  }
  args.ba = ba;
  if (!drafts_.empty()) {
    const int64_t kept = std::min(toks, drafts_.shape[0]);
    const int64_t channels = spec_.num_channels();
    const ActView to = drafts_.rows(0, kept);
    gather_rows(stream, {all.columns(0, channels).rows(0, kept), {}, to.columns(0, channels)});
    gather_rows(stream, {ba.rows(0, kept), {}, to.columns(channels, ba_size)});
    args.cu_num_logits = metadata.batch.cu_num_logits;
  }
  args.idx_mapping = metadata.batch.idx_mapping;
  if (context.sink == nullptr) {  // else a piece of a graph, which serves any number of rows
    args.idx_mapping.shape[0] = metadata.batch.num_rows;
    args.num_decode_rows = metadata.batch.num_decode_rows;
  }
  args.query_start_loc = metadata.batch.query_start_loc;
  args.seq_lens = metadata.batch.seq_lens;
  args.pages.table = metadata.block_table;
  args.pages.data = reinterpret_cast<float*>(pages.k);
  args.pages.page_stride = pages.block_stride;
  args.gates = workspace.gates;
  args.scratch = workspace.scratch;
  args.out = out;
  gated_delta(stream, args);
}

DeltaWorkspace make_delta_workspace(Arena& arena,
                                    const DeviceFacts& device,
                                    DType act_dtype,
                                    int64_t max_toks,
                                    int64_t max_draft_toks,
                                    std::span<const DeltaSpec> layers) {
  int64_t in = 0;
  int64_t heads = 0;
  int64_t scratch = 0;
  int64_t values = 0;
  for (const DeltaSpec& layer : layers) {
    in = std::max(in, layer.in_size() + 2 * int64_t{layer.num_value_heads});
    heads = std::max<int64_t>(heads, layer.num_value_heads);
    values = std::max(values, layer.value_size());
    scratch = std::max(scratch, gated_delta_scratch_floats(layer, device.num_threads));
  }
  const auto activations = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(max_toks * width) * dtype_bytes(act_dtype);
    return ActView(act_dtype, arena.alloc_bytes(bytes), max_toks, width);
  };
  DeltaWorkspace workspace;
  if (layers.empty()) {
    return workspace;
  }
  workspace.in = activations(in);
  if (max_draft_toks > 0) {
    const size_t bytes = static_cast<size_t>(max_draft_toks * values) * dtype_bytes(act_dtype);
    workspace.drafts_out = ActView(act_dtype, arena.alloc_bytes(bytes), max_draft_toks, values);
  }
  if (device.kind == DeviceKind::kCpu) {
    workspace.ba = activations(2 * heads);
    workspace.gates = arena.alloc<float>(max_toks * 2 * heads);
    workspace.scratch = arena.alloc<float>(scratch);
  }
  return workspace;
}

}  // namespace warprow
