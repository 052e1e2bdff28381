// SPDX-License-Identifier: Apache-2.0
#include "runner/features/block_copies.h"

#include "base/check.h"
#include "base/dtype.h"
#include "runner/kv_cache.h"

#include <vector>

namespace warprow {
namespace {

// Owns: the copies of the step under way.
class BlockCopies final : public RunnerFeature {
 public:
  explicit BlockCopies(const RunnerParts& parts)
      : cache_(parts.kv_cache), kernel_blocks_(parts.groups.front().kernel_blocks_per_block()) {
    copies_.reserve(
        static_cast<size_t>(parts.limits.max_num_seqs));  // a row begins with one at most
  }

  void stage(const SchedulerOutput& step, StagedWrites& /*staged*/) override {
    copies_.assign(step.block_copies.begin(), step.block_copies.end());
  }

  void before_forward(Stream& stream, const InputBatch& /*batch*/) override {
    for (const BlockCopy& copy : copies_) {
      WR_CHECK_EQ(copy.group, 0);
      for (const KvLayerView& layer : (*cache_)->layers()) {
        if (layer.k != nullptr) {  // not of another stage
          copy_block(stream, layer, index_of(copy.from), index_of(copy.to));
        }
      }
    }
  }

 private:
  void copy_block(Stream& stream, const KvLayerView& layer, int64_t from, int64_t to) const {
    const int64_t element = static_cast<int64_t>(dtype_bytes(layer.dtype));
    const int64_t stride = layer.block_stride * element;
    const int64_t rows = int64_t{layer.block_size} * layer.num_kv_heads * element;
    for (int64_t i = 0; i < kernel_blocks_; ++i) {
      const int64_t source = (from * kernel_blocks_ + i) * stride;
      const int64_t target = (to * kernel_blocks_ + i) * stride;
      stream.copy_to_device(
          layer.k + target, layer.k + source, static_cast<size_t>(rows * layer.head_dim_k));
      stream.copy_to_device(
          layer.v + target, layer.v + source, static_cast<size_t>(rows * layer.head_dim_v));
    }
  }

  const KvCache* const* cache_;
  int64_t kernel_blocks_;  // of a block
  std::vector<BlockCopy> copies_;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_block_copies(const RunnerParts& parts) {
  return std::make_unique<BlockCopies>(parts);
}

}  // namespace warprow
