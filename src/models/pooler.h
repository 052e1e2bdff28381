// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"
#include "config/pooling_facts.h"
#include "models/decoder_spec.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// A dense layer behind the pooling: y = norm(act(W x + b)), in float32.
struct PoolerLayer {
  enum class Activation : uint8_t { kNone, kTanh, kGelu };

  int32_t num_inputs = 0;
  int32_t num_outputs = 0;
  std::vector<float> weight;  // [num_outputs, num_inputs]
  std::vector<float> bias;    // [num_outputs] or empty
  Activation activation = Activation::kNone;
  std::vector<float> norm_weight{};  // of a LayerNorm [num_outputs], or empty: none
  std::vector<float> norm_bias{};    // [num_outputs] or empty
  float norm_eps = 1e-5F;
};

// The tokens of a reranker whose answer is one of them; without `no` the logit of `yes` alone is the score.
struct JudgeTokens {
  int64_t yes = 0;
  std::optional<int64_t> no;
};

// What turns a prompt's hidden states into a vector: which of them, and the layers behind. Sums have the order of their
// elements, so a vector depends on its prompt alone.
//
// Owns: the layers' parameters, on the host. Thread: any.
struct Pooler {
  PoolingFacts facts;
  std::vector<PoolerLayer> layers;
  std::optional<JudgeTokens> judge;  // that sentence-transformers' files name

  // Applies the layers to a vector of hidden_size values, which then has facts.width.
  void apply(std::vector<float>& values) const;
};

// The pooler of a checkpoint, or null if the model generates. `dir` is the Hugging Face directory, empty for GGUF;
// settings.runner and settings.convert say what the user wants.
//
// With runner "auto" a model pools if it has sentence-transformers' modules.json with a pooling module, if its class is
// ...Model, ...ForSequenceClassification or names classifier_from_token, or if a GGUF file names a pooling type. An encoder
// always pools. Without such files a decoder pools its last token and an encoder the mean, and both normalise. modules.json
// may name modules of the kinds Transformer, Pooling (last token, first token or mean), Dense, Normalize and LogitScore.
//
// Errors: files that cannot be read or contradict each other; a module, pooling or model that is not supported, by name;
// a model without a head that is to generate.
Result<std::unique_ptr<Pooler>> read_pooler(const Checkpoint& checkpoint,
                                            const std::string& dir,
                                            const DecoderSpec& spec,
                                            const EngineConfig& settings);

// The tokens that a prompt may have by sentence_bert_config.json; nullopt if it says nothing.
Result<std::optional<int32_t>> read_max_seq_length(const std::string& dir);

}  // namespace warprow
