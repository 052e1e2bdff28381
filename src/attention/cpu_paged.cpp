// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu_paged.h"

#include "attention/paged_args.h"
#include "kernels/attention/paged_attention.h"

namespace warprow {
namespace {

constexpr AttentionCapabilities kCapabilities{
    .name = "cpu_paged",
    .device = DeviceKind::kCpu,
    .head_dim_multiple = 8,
    .max_head_dim = 512,
    .kv_f32 = true,
    .kv_bf16 = true,
    .kv_f8 = true,
    .kernel_block_multiple = 16,
    .kv_nhd = true,
    .kv_apart = true,
    .kv_by_block = true,
    .padded_pages = true,
    .separate_kv_write = true,
    .sliding_window = true,
    .sinks = true,
    .soft_cap = true,
    .not_causal = true,
    .batch_invariant = true,
    .batch_invariant_window = true,
    .graph_support = GraphSupport::kAlways,
};

// Online softmax directly over the block tables. Nothing to prepare: tables, lengths and rows are read in place.
class CpuPagedAttention final : public AttentionBackend {
 public:
  const AttentionCapabilities& capabilities() const override { return kCapabilities; }

  void allocate(Arena& workspace, Device& device, const AttentionLimits& limits) override {
    const auto bytes = static_cast<int64_t>(paged_attention_scratch_bytes(
        limits.kv, limits.num_heads, limits.max_num_rows, device.facts().num_threads));
    scratch_ = make_view(workspace.alloc<std::byte>(bytes), bytes);
  }

  AttentionMetadata build_metadata(Stream& /*stream*/,
                                   const KvGroupSpec& /*group*/,
                                   const AttentionMetadata& base) override {
    return base;
  }

  void forward(Stream& stream,
               const AttentionCall& call,
               const AttentionMetadata& metadata) override {
    PagedAttentionArgs args;
    set_batch(args, metadata);
    set_call(args, call);
    args.scratch = scratch_;
    paged_attention(stream, args);
  }

 private:
  View<std::byte, 1> scratch_;
};

}  // namespace

const AttentionCapabilities& cpu_paged_capabilities() { return kCapabilities; }
std::unique_ptr<AttentionBackend> make_cpu_paged() { return std::make_unique<CpuPagedAttention>(); }

}  // namespace warprow
