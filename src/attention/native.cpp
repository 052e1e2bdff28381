// SPDX-License-Identifier: Apache-2.0
#include "attention/native.h"

#include "attention/paged_args.h"
#include "base/check.h"
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/scheduled_attention.h"

namespace warprow {
namespace {

constexpr int32_t kNativeHeadDims[] = {64, 128};
constexpr int32_t kNativeHopperHeadDims[] = {256};  // in the batch-invariant order of sums alone

constexpr AttentionCapabilities kNativeCapabilities{
    .name = "native",
    .device = DeviceKind::kCuda,
    .min_compute_capability = 80,
    .head_dims = kNativeHeadDims,
    .hopper_head_dims = kNativeHopperHeadDims,
    .max_group = cuda::kMaxGroup,
    .kv_f32 = false,
    .kv_bf16 = true,
    .kv_f8 = true,
    .kernel_block_multiple = cuda::kSegmentToks,
    .kv_nhd = true,
    .kv_apart = true,
    .kv_by_block = true,
    .padded_pages = true,
    .separate_kv_write = true,
    .ahead_of_time_schedule = true,
    .sliding_window = true,
    .sinks = true,
    .soft_cap = true,
    .not_causal = true,
    .batch_invariant = true,
    .batch_invariant_window = true,
    .max_num_rows = cuda::kMaxScheduledRows,
    .graph_support = GraphSupport::kAlways,
};

class NativeAttention final : public AttentionBackend {
 public:
  const AttentionCapabilities& capabilities() const override { return kNativeCapabilities; }

  void allocate(Arena& workspace, Device& /*device*/, const AttentionLimits& limits) override {
    WR_CHECK_LE(limits.num_heads, cuda::kMaxGroup * limits.kv.num_kv_heads);
    WR_CHECK_LE(limits.max_num_rows, cuda::kMaxScheduledRows);
    limits_ = limits;
    const auto bytes = static_cast<int64_t>(native_attention_scratch_bytes(
        limits.kv, limits.num_heads, limits.max_num_rows, limits.decode_len));
    scratch_ = make_view(workspace.alloc<std::byte>(bytes), bytes);
  }

  AttentionMetadata build_metadata(Stream& stream,
                                   const KvGroupSpec& group,
                                   const AttentionMetadata& base) override {
    window_ = group.window;
    cuda::ScheduledAttentionArgs args = batch_args(base);
    args.kv = limits_.kv;
    args.num_q_heads = limits_.num_heads;
    args.q.shape[0] = base.batch.num_toks;
    cuda::attention_schedule(stream, args);
    after_schedule_ = true;
    return base;
  }

  bool takes_rope(const Stream& stream,
                  const AttentionCall& call,
                  const AttentionMetadata& metadata,
                  const RopeKvWriteArgs& rope) const override {
    cuda::ScheduledAttentionArgs args = batch_args(metadata);
    set_call(args, call);
    return cuda::attention_takes_rope(stream.device().facts(), args, rope);
  }

  void forward(Stream& stream,
               const AttentionCall& call,
               const AttentionMetadata& metadata) override {
    cuda::ScheduledAttentionArgs args = batch_args(metadata);
    set_call(args, call);
    args.rope = call.rope;
    // The kernels in front of attention let it start before their own pdl_wait, so the step's schedule may not be complete by
    // then. An attention kernel calls pdl_wait before it lets the next kernel start.
    args.settled = !after_schedule_;
    cuda::attention_forward(stream, args);
    after_schedule_ = false;
  }

 private:
  [[nodiscard]] cuda::ScheduledAttentionArgs batch_args(const AttentionMetadata& metadata) const {
    cuda::ScheduledAttentionArgs args;
    set_batch(args, metadata);
    args.scratch = scratch_;
    args.num_decode_rows = metadata.batch.num_decode_rows;
    args.num_decode_toks = metadata.batch.num_decode_toks;
    args.decode_len = metadata.batch.decode_len;
    args.most_prompt_keys = metadata.batch.most_prompt_keys;
    args.batch_invariant = limits_.batch_invariant;
    args.schedule_window = window_;
    return args;
  }

  AttentionLimits limits_;
  View<std::byte, 1> scratch_;
  int32_t window_ = 0;
  bool after_schedule_ = false;  // no forward yet since the schedule
};

}  // namespace

const AttentionCapabilities& native_attention_capabilities() { return kNativeCapabilities; }
std::unique_ptr<AttentionBackend> make_native_attention() {
  return std::make_unique<NativeAttention>();
}

}  // namespace warprow
