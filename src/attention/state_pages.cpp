// SPDX-License-Identifier: Apache-2.0
#include "attention/state_pages.h"

#include "base/check.h"

namespace warprow {
namespace {

// max_head_dim 0: it takes no layer with heads, so "auto" never chooses it for attention.
constexpr AttentionCapabilities kOnCpu{
    .name = "state_pages",
    .device = DeviceKind::kCpu,
    .max_head_dim = 0,
    .kv_f32 = true,
    .kernel_block_multiple = 1,
    .kv_nhd = true,
    .kv_by_block = true,
    .padded_pages = true,
    .batch_invariant = true,
    .graph_support = GraphSupport::kAlways,
};
constexpr AttentionCapabilities kOnCuda = [] {
  AttentionCapabilities can = kOnCpu;
  can.device = DeviceKind::kCuda;
  can.min_compute_capability = 80;
  return can;
}();

class StatePagesBackend final : public AttentionBackend {
 public:
  explicit StatePagesBackend(const AttentionCapabilities& can) : can_(can) {}

  const AttentionCapabilities& capabilities() const override { return can_; }
  void allocate(Arena& /*workspace*/,
                Device& /*device*/,
                const AttentionLimits& /*limits*/) override {}
  AttentionMetadata build_metadata(Stream& /*stream*/,
                                   const KvGroupSpec& /*group*/,
                                   const AttentionMetadata& base) override {
    return base;
  }
  void forward(Stream& /*stream*/,
               const AttentionCall& /*call*/,
               const AttentionMetadata& /*metadata*/) override {
    WR_CHECK(false, "attention in a group of states");
  }

 private:
  const AttentionCapabilities& can_;
};

}  // namespace

const AttentionCapabilities& state_pages_capabilities() { return kOnCpu; }
std::unique_ptr<AttentionBackend> make_state_pages() {
  return std::make_unique<StatePagesBackend>(kOnCpu);
}
const AttentionCapabilities& state_pages_cuda_capabilities() { return kOnCuda; }
std::unique_ptr<AttentionBackend> make_state_pages_cuda() {
  return std::make_unique<StatePagesBackend>(kOnCuda);
}

}  // namespace warprow
