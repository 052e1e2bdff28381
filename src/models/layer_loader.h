// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "layers/experts.h"
#include "layers/join.h"
#include "layers/linear.h"
#include "layers/parameter_loader.h"
#include "models/decoder_spec.h"
#include "models/tensor_split.h"

#include <cstdint>
#include <string>

namespace warprow {

// The weights of a norm of the model, as it multiplies with them.
View<const float, 1> load_norm(ParameterLoader& loader,
                               const DecoderSpec& spec,
                               const std::string& name,
                               int64_t width);

// Whether rows of a vocabulary are embeddings, the matrix of the logits, or both (tied).
enum class VocabUse : uint8_t { kLookedUp, kMultiplied, kBoth };
// Rows of the rank's part of a vocabulary, of a tensor [vocab_size, width]. A rank whose part is empty reads nothing.
PackedWeight load_vocab(ParameterLoader& loader,
                        int32_t vocab_size,
                        const VocabPart& part,
                        const std::string& name,
                        int64_t width,
                        VocabUse use = VocabUse::kLookedUp);

// Loads the parameters of one layer, this rank's part of them. Names are patterns of DecoderWeightNames.
class LayerLoader {
 public:
  // ranks: those that divide the layer.
  LayerLoader(ParameterLoader& loader,
              const DecoderSpec& spec,
              int32_t index,
              const RankGroup& ranks,
              const LinearMode& mode);

  [[nodiscard]] ParameterLoader& loader() const { return loader_; }
  [[nodiscard]] const DecoderSpec& spec() const { return spec_; }
  [[nodiscard]] const DecoderWeightNames& names() const { return spec_.names; }
  [[nodiscard]] int32_t index() const { return index_; }
  [[nodiscard]] const LayerSpec& whole() const { return whole_; }  // of all ranks together
  [[nodiscard]] const LayerSpec& mine() const { return mine_; }
  [[nodiscard]] const LayerShards& shards() const { return shards_; }
  [[nodiscard]] const RankGroup& ranks() const { return ranks_; }
  [[nodiscard]] const LinearMode& mode() const { return mode_; }

  [[nodiscard]] std::string name(const std::string& pattern) const;
  [[nodiscard]] View<const float, 1> norm(const std::string& pattern, int64_t width) const;
  [[nodiscard]] LinearPart part(const std::string& pattern,
                                int64_t rows,
                                int64_t cols,
                                const ShardRule& shard,
                                bool bias) const;
  [[nodiscard]] Linear linear(const std::vector<LinearPart>& parts) const;
  // The same as one matrix. The parts may be many, and have no biases.
  [[nodiscard]] Linear stacked(const std::vector<LinearPart>& parts) const;
  // How products of this layer join the residual stream. post_norm: read only if the family has post-norms.
  [[nodiscard]] JoinMode join_mode(const std::string& post_norm) const;
  // The product [hidden_size, inputs] and its join. The first rank's part of the sum has the bias.
  [[nodiscard]] Join join(const std::string& weight,
                          int64_t inputs,
                          const ShardRule& shard,
                          bool bias,
                          const std::string& post_norm) const;
  // Where the checkpoint has the layer's experts: a tensor for each, or tensors of all of them.
  [[nodiscard]] ExpertTensors expert_tensors() const;

 private:
  [[nodiscard]] ExpertTensors plain_expert_tensors() const;
  void add_mxfp4_experts(ExpertTensors& tensors) const;
  void add_alternating_experts(ExpertTensors& tensors) const;
  void add_expert_biases(ExpertTensors& tensors) const;
  [[nodiscard]] TensorSpec expert_slice(const std::string& pattern,
                                        int64_t expert,
                                        int64_t rows,
                                        int64_t cols,
                                        const ShardRule& shard) const;

  ParameterLoader& loader_;
  const DecoderSpec& spec_;
  int32_t index_;
  RankGroup ranks_;
  LinearMode mode_;
  const LayerSpec& whole_;
  LayerSpec mine_;
  LayerShards shards_;
};

}  // namespace warprow
