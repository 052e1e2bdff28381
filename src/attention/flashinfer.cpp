// SPDX-License-Identifier: Apache-2.0
#include "attention/flashinfer.h"

#include "attention/paged_args.h"
#include "base/check.h"
#include "base/error.h"
#include "kernels/attention/flashinfer_attention.h"

#include <string_view>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr AttentionCapabilities kHopper{
    .name = "flashinfer",
    .device = DeviceKind::kCuda,
    .compute_capability = 90,
    .head_dim_multiple = 64,
    .max_head_dim = 128,
    .max_group = 8,
    .kv_f32 = false,
    .kv_bf16 = true,
    .kernel_block_multiple = 16,
    .separate_kv_write = true,
    .ahead_of_time_schedule = true,
    .sliding_window = false,
    .sinks = false,
    .graph_support = GraphSupport::kUniformBatch,
};

constexpr AttentionCapabilities kFa2 = [] {
  AttentionCapabilities can = kHopper;
  can.compute_capability = 0;
  can.max_group = 0;
  can.sliding_window = true;
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
    limits_.num_sms = device.facts().num_sms;
    batch_invariant_ = limits.batch_invariant;
    // FA2 takes a window's keys in tiles that begin where the window of a tile of queries does, so
    // sums depend on where prompts are cut.
    const std::string_view unmet = batch_invariant_ && limits.window > 0
                                       ? "sliding windows with batch-invariant"
                                       : flashinfer_unmet_need(limits_);
    if (!unmet.empty()) {
      throw StartupError(ErrorCode::kUnsupported,
                         fmt::format("attention backend flashinfer does not support {}", unmet));
    }
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
    // A token that is decoded now may be a chunk's last elsewhere, so it takes the same kernel.
    args.num_decode_rows = batch_invariant_ ? 0 : metadata.batch.num_decode_rows;
    args.batch_invariant = batch_invariant_;
    return args;
  }

  FlashInferLimits limits_;
  View<std::byte, 1> scratch_;
  int32_t window_ = 0;  // of the plan
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
