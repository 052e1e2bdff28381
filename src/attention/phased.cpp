// SPDX-License-Identifier: Apache-2.0
#include "attention/phased.h"

#include "attention/flashinfer.h"
#include "attention/native.h"
#include "base/check.h"

namespace warprow {
namespace {

constexpr const char* kName = "native+flashinfer";

AttentionBatch decode_rows(AttentionBatch batch) {
  batch.num_rows = batch.num_decode_rows;
  batch.num_toks = batch.num_decode_toks;
  return batch;
}

// The batch without its decode rows. Query tokens keep their indices.
AttentionBatch extend_rows(AttentionBatch batch) {
  const int32_t first = batch.num_decode_rows;
  const auto from = [first](View<const int32_t, 1> view) {
    return make_view(view.data + first, view.shape[0] - first);
  };
  batch.idx_mapping = from(batch.idx_mapping);
  batch.query_start_loc = from(batch.query_start_loc);
  batch.seq_lens = from(batch.seq_lens);
  batch.num_rows -= first;
  batch.num_decode_rows = 0;
  batch.num_decode_toks = 0;
  return batch;
}

class PhasedAttention final : public AttentionBackend {
 public:
  [[nodiscard]] const AttentionCapabilities& capabilities() const override {
    return phased_attention_capabilities();
  }

  void allocate(Arena& workspace, Device& device, const AttentionLimits& limits) override {
    WR_CHECK(!limits.batch_invariant, "two backends have two orders of sums");
    decode_->allocate(workspace, device, limits);
    extend_->allocate(workspace, device, limits);
  }

  AttentionMetadata build_metadata(Stream& stream,
                                   const KvGroupSpec& group,
                                   const AttentionMetadata& base) override {
    for_each_part(base, [&](AttentionBackend& backend, const AttentionMetadata& part) {
      backend.build_metadata(stream, group, part);
    });
    return base;
  }

  void forward(Stream& stream,
               const AttentionCall& call,
               const AttentionMetadata& metadata) override {
    for_each_part(metadata, [&](AttentionBackend& backend, const AttentionMetadata& part) {
      backend.forward(stream, call, part);
    });
  }

 private:
  template <typename F>
  void for_each_part(const AttentionMetadata& all, F run) {
    AttentionMetadata part = all;
    if (all.batch.num_decode_rows > 0) {
      part.batch = decode_rows(all.batch);
      run(*decode_, part);
    }
    if (all.batch.num_decode_rows < all.batch.num_rows) {
      part.batch = extend_rows(all.batch);
      run(*extend_, part);
    }
  }

  std::unique_ptr<AttentionBackend> decode_ = make_native_attention();
  std::unique_ptr<AttentionBackend> extend_ = make_flashinfer();
};

}  // namespace

const AttentionCapabilities& phased_attention_capabilities() {
  static const AttentionCapabilities both = [] {
    AttentionCapabilities can = flashinfer_capabilities();  // the more limited of the two back ends
    can.name = kName;
    can.max_num_rows = native_attention_capabilities().max_num_rows;
    can.max_rows_times_kv_heads = 0;  // flashinfer gets no decode row
    can.batch_invariant = false;  // a token decoded now may be the last of a chunk in another run
    return can;
  }();
  return both;
}

std::unique_ptr<AttentionBackend> make_phased_attention() {
  return std::make_unique<PhasedAttention>();
}

}  // namespace warprow
