// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"
#include "attention/forward_context.h"
#include "base/check.h"
#include "device/cpu/cpu_device.h"
#include "layers/parameter_loader.h"
#include "models/decoder.h"
#include "models/layer_needs.h"
#include "models/tensor_split.h"
#include "runner/kv_cache.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace warprow::test {

// Runs one request through a decoder, or through its stages, without a runner: on the CPU in float32, with shuffled
// block numbers. Of several ranks it is one (DecoderOptions::tensor).
class ForwardRig {
 public:
  static constexpr int32_t kMaxToks = 64;
  static constexpr int32_t kBlocks = 8;  // per group: 128 tokens

  // Builds a decoder for each of `stages`.
  ForwardRig(const DecoderSpec& spec,
             const Checkpoint& checkpoint,
             const std::vector<DecoderOptions>& stages)
      : device_(cpu::make_cpu_device({.num_threads = 2, .mode = cpu::CpuStreamMode::kInline})),
        stream_(device_->make_stream()),
        plan_(value_or_throw(
            plan_kv(rank_spec(spec, stages.front().tensor.place), {.dtype = DType::kF32}))),
        workspace_(device_->make_arena(ArenaPurpose::kWorkspace, size_t{64} << 20)),
        weights_(device_->make_arena(ArenaPurpose::kWeights, size_t{64} << 20)) {
    const auto num_groups = static_cast<int32_t>(plan_.groups.size());
    KvCacheSpec cache;
    cache.groups = plan_.groups;
    cache.num_blocks = 1 + num_groups * kBlocks;
    cache_ = std::make_unique<KvCache>(
        device_->make_arena(ArenaPurpose::kKvCache, static_cast<size_t>(cache.total_bytes())),
        cache,
        plan_);
    for (DecoderOptions options : stages) {
      options.max_num_toks = kMaxToks;
      ParameterLoader loader(checkpoint, *stream_, weights_);
      stages_.push_back(std::make_unique<Decoder>(spec, plan_, options, loader, workspace_));
      loader.finish();
    }
    for (int32_t g = 0; g < num_groups; ++g) {
      add_group(g, num_groups);
    }
  }

  [[nodiscard]] const KvPlan& kv() const { return plan_; }
  // The first stage's.
  [[nodiscard]] Model& model() { return *stages_.front(); }

  // Runs the request's next tokens through all stages and returns the last stage's result. With embeddings, negative
  // ids take embedding rows.
  ModelOutput forward(const std::vector<int32_t>& ids, View<const float, 2> embeddings = {}) {
    const auto toks = static_cast<int32_t>(ids.size());
    std::vector<int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), computed_);
    ModelInput in;
    in.input_ids = make_view(ids.data(), toks);
    in.positions = make_view<const int32_t>(positions.data(), 1, toks);
    in.embeddings = embeddings;
    begin_step(toks);
    ForwardContext context;
    context.groups = groups_;
    context.kv_layers = cache_->layers();
    context.num_toks = toks;
    const ScopedForwardContext scope(*stream_, context);
    ModelOutput out;
    for (const auto& stage : stages_) {
      out = stage->forward(*stream_, in);
      in.input_ids = {};
      in.embeddings = {};
      in.residual = out.residual;
    }
    computed_ += toks;
    return out;
  }

  // [T, vocab], or a rank's part: [T, VocabPart::width]
  std::vector<float> logits(const ModelOutput& out) {
    Model& last = *stages_.back();
    const int64_t vocab = last.facts().vocab.width;
    std::vector<float> values(static_cast<size_t>(out.hidden.shape[0] * vocab));
    last.compute_logits(*stream_, out.hidden, make_view(values.data(), out.hidden.shape[0], vocab));
    return values;
  }

 private:
  void add_group(int32_t g, int32_t num_groups) {
    const auto at = static_cast<size_t>(g);
    backends_.push_back(value_or_throw(
        make_attention_backend(plan_.backends[at],
                               device_->facts(),
                               attention_needs(stages_.front()->facts().mixers, plan_, g, {}))));
    AttentionLimits limits;
    limits.kv = kv_layer_view({plan_.groups, 0}, {g, 0}, nullptr);
    limits.num_heads = plan_.num_heads[at];
    limits.max_num_rows = 1;
    limits.max_num_toks = kMaxToks;
    limits.max_num_blocks = kBlocks;
    limits.num_table_cells = kBlocks;
    backends_[at]->allocate(workspace_, *device_, limits);
    std::vector<int32_t>& table = tables_.emplace_back();
    for (int32_t b = 0; b < kBlocks; ++b) {
      table.push_back(1 + (kBlocks - 1 - b) * num_groups + g);
    }
    slots_.emplace_back();
    groups_.push_back({backends_[at].get(), {}});
  }

  void begin_step(int32_t toks) {
    row_ = 0;
    query_start_loc_ = {0, toks};
    seq_len_ = computed_ + toks;
    for (size_t g = 0; g < groups_.size(); ++g) {
      slots_[g].clear();
      for (int32_t p = computed_; p < seq_len_; ++p) {
        const int32_t block_size = plan_.groups[g].block_size;
        const int64_t block = tables_[g][static_cast<size_t>(p / block_size)];
        slots_[g].push_back(block * block_size + p % block_size);
      }
      AttentionMetadata base;
      base.batch = {make_view<const int32_t>(&row_, 1),
                    make_view<const int32_t>(query_start_loc_.data(), 2),
                    make_view<const int32_t>(&seq_len_, 1),
                    1,
                    toks,
                    toks == 1 ? 1 : 0};
      base.block_table = {tables_[g].data(), &row_, kBlocks};
      base.slot_mapping = make_view<const int64_t>(slots_[g].data(), toks);
      groups_[g].metadata = backends_[g]->build_metadata(*stream_, plan_.groups[g], base);
    }
  }

  std::unique_ptr<cpu::CpuDevice> device_;
  std::unique_ptr<Stream> stream_;
  KvPlan plan_;
  Arena workspace_;
  Arena weights_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::unique_ptr<Decoder>> stages_;
  std::vector<std::unique_ptr<AttentionBackend>> backends_;
  std::vector<ForwardGroup> groups_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::vector<int64_t>> slots_;
  int32_t computed_ = 0;
  int32_t row_ = 0;
  int32_t seq_len_ = 0;
  std::vector<int32_t> query_start_loc_;
};

}  // namespace warprow::test
