// SPDX-License-Identifier: Apache-2.0
#include "attention/flashinfer.h"

#include "attention/paged_args.h"
#include "base/check.h"
#include "kernels/attention/flashinfer/params.h"

#include <string_view>

namespace warprow {
namespace {

constexpr int32_t kFlashInferHeadDims[] = {64, 128};
constexpr int32_t kMaxGridDim = 65'535;  // limits rows times KV heads, the depth of the decode grid

constexpr AttentionCapabilities kHopper{
    .name = "flashinfer",
    .device = DeviceKind::kCuda,
    .min_compute_capability = 90,
    .max_compute_capability = 90,
    .head_dims = kFlashInferHeadDims,
    .max_group = 8,
    .kv_f32 = false,
    .kv_bf16 = true,
    .kernel_block_multiple = 16,
    .kv_nhd = true,
    .kv_apart = true,
    .kv_by_block = true,
    // The distance between blocks must be a multiple of the decode kernel's page.
    .padded_pages = false,
    .separate_kv_write = true,
    .ahead_of_time_schedule = true,
    .sliding_window = false,
    .sinks = false,
    .soft_cap = false,
    .output_gate = false,  // its kernels derive the width of a row from the heads
    .not_causal = false,
    .batch_invariant = true,
    .batch_invariant_window = false,
    .max_rows_times_kv_heads = kMaxGridDim,
    .max_tiles = cuda::kMaxExtendTiles,
    .tile_toks = &cuda::extend_tile_q,
    .graph_support = GraphSupport::kAlways,
};

// FA2 tiles a window's keys from where the window of a query tile begins, so sums depend on where prompts are
// split: no windows with batch-invariant.
constexpr AttentionCapabilities kFa2 = [] {
  AttentionCapabilities can = kHopper;
  can.min_compute_capability = 80;
  can.max_compute_capability = kAnyCapability;
  can.max_group = 0;
  can.padded_pages = true;
  can.sliding_window = true;
  can.max_rows_times_kv_heads = 0;
  can.max_tiles = 0;
  can.tile_toks = nullptr;
  return can;
}();

class FlashInferAttention final : public AttentionBackend {
 public:
  explicit FlashInferAttention(bool fa2) { limits_.fa2 = fa2; }

  const AttentionCapabilities& capabilities() const override {
    return limits_.fa2 ? kFa2 : kHopper;
  }

  void allocate(Arena& workspace, Device& device, const AttentionLimits& limits) override {
    limits_.kv = limits.kv;
    limits_.num_q_heads = limits.num_heads;
    limits_.max_rows = limits.max_num_rows;
    limits_.max_toks = limits.max_num_toks;
    limits_.max_blocks = limits.max_num_blocks;
    limits_.num_table_cells = limits.num_table_cells;
    limits_.num_sms = device.facts().num_sms;
    decodes_apart_ = limits.decode_len == 1 && !limits.batch_invariant;
    batch_invariant_ = limits.batch_invariant;
    const std::string_view unmet = flashinfer_unmet_need(limits_);
    WR_CHECK(unmet.empty(), "{}", unmet);
    const auto bytes = static_cast<int64_t>(flashinfer_scratch_bytes(limits_));
    scratch_ = make_view(workspace.alloc<std::byte>(bytes), bytes);
  }

  AttentionMetadata build_metadata(Stream& stream,
                                   const KvGroupSpec& group,
                                   const AttentionMetadata& base) override {
    window_ = group.window;
    cuda::FlashInferArgs args = batch_args(base);
    args.window = window_;
    args.kv = limits_.kv;
    args.num_q_heads = limits_.num_q_heads;
    args.q.shape[0] = base.batch.num_toks;
    cuda::flashinfer_plan(stream, args);
    return base;
  }

  void forward(Stream& stream,
               const AttentionCall& call,
               const AttentionMetadata& metadata) override {
    WR_CHECK_EQ(call.params.window, window_);
    cuda::FlashInferArgs args = batch_args(metadata);
    set_call(args, call);
    cuda::flashinfer_forward(stream, args);
  }

 private:
  [[nodiscard]] cuda::FlashInferArgs batch_args(const AttentionMetadata& metadata) const {
    cuda::FlashInferArgs args;
    args.limits = limits_;
    set_batch(args, metadata);
    args.scratch = scratch_;
    args.num_decode_rows = decodes_apart_ ? metadata.batch.num_decode_rows : 0;
    args.batch_invariant = batch_invariant_;
    return args;
  }

  FlashInferLimits limits_;
  View<std::byte, 1> scratch_;
  int32_t window_ = 0;  // of the plan
  // The decode kernels take one token per row. With batch_invariant no row uses them: a token that is decoded now
  // may be the last of a chunk in another run.
  bool decodes_apart_ = true;
  bool batch_invariant_ = false;
};

}  // namespace

const AttentionCapabilities& flashinfer_capabilities() { return kHopper; }
std::unique_ptr<AttentionBackend> make_flashinfer() {
  return std::make_unique<FlashInferAttention>(false);
}
const AttentionCapabilities& flashinfer_fa2_capabilities() { return kFa2; }
std::unique_ptr<AttentionBackend> make_flashinfer_fa2() {
  return std::make_unique<FlashInferAttention>(true);
}

}  // namespace warprow
