// SPDX-License-Identifier: Apache-2.0
#include "attention/float32.h"

#include "attention/paged_args.h"
#include "kernels/attention/float32/f32_attention.h"

namespace warprow {
namespace {

constexpr AttentionCapabilities kCapabilities{
    .name = "float32",
    .device = DeviceKind::kCuda,
    .min_compute_capability = 80,
    .max_head_dim = cuda::kMaxF32HeadDim,
    .kv_f32 = true,
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

class Float32Attention final : public AttentionBackend {
 public:
  [[nodiscard]] const AttentionCapabilities& capabilities() const override { return kCapabilities; }

  void allocate(Arena& /*workspace*/,
                Device& /*device*/,
                const AttentionLimits& /*limits*/) override {}

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
    paged_attention(stream, args);
  }
};

}  // namespace

const AttentionCapabilities& float32_attention_capabilities() { return kCapabilities; }
std::unique_ptr<AttentionBackend> make_float32_attention() {
  return std::make_unique<Float32Attention>();
}

}  // namespace warprow
