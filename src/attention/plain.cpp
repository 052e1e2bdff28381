// SPDX-License-Identifier: Apache-2.0
#include "attention/plain.h"

#include "attention/paged_args.h"
#include "kernels/attention/plain/plain_attention.h"

namespace warprow {
namespace {

constexpr AttentionCapabilities kFloat32{
    .name = "float32",
    .device = DeviceKind::kCuda,
    .min_compute_capability = 80,
    .max_head_dim = cuda::kMaxPlainHeadDim,
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

constexpr AttentionCapabilities kPlain = [] {
  AttentionCapabilities can = kFloat32;
  can.name = "plain";
  can.kv_f32 = false;
  can.kv_bf16 = true;
  return can;
}();

class PlainAttention final : public AttentionBackend {
 public:
  explicit PlainAttention(const AttentionCapabilities& capabilities)
      : capabilities_(capabilities) {}

  [[nodiscard]] const AttentionCapabilities& capabilities() const override { return capabilities_; }

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
    cuda::plain_attention(stream, args);
  }

 private:
  const AttentionCapabilities& capabilities_;
};

}  // namespace

const AttentionCapabilities& float32_attention_capabilities() { return kFloat32; }
std::unique_ptr<AttentionBackend> make_float32_attention() {
  return std::make_unique<PlainAttention>(kFloat32);
}
const AttentionCapabilities& plain_attention_capabilities() { return kPlain; }
std::unique_ptr<AttentionBackend> make_plain_attention() {
  return std::make_unique<PlainAttention>(kPlain);
}

}  // namespace warprow
