// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// What a pooling model's vectors are.
enum class PoolingTask : uint8_t {
  kNone,     // the model generates
  kEmbed,    // embeddings
  kClassify  // a logit for each label; with one label the score of a reranker
};

// Which hidden states, after the final norm, a prompt's vector is made of.
enum class PoolingMethod : uint8_t { kLast, kFirst, kMean };

// What turns logits into probabilities.
enum class LabelActivation : uint8_t { kNone, kSigmoid, kSoftmax };

// How a reranker reads a query and a document.
enum class PairForm : uint8_t {
  kJoined,      // one text: the query, then the document
  kQwen3Judge,  // a chat that asks for yes or no
  kSegments     // two segments, with the tokens that the tokenizer puts around and between them
};

// A classifier's label.
struct PoolingLabel {
  std::string name;
  bool operator==(const PoolingLabel&) const = default;
};

// What a pooling model yields for a prompt. The runner's vectors have `width` values. The engine applies dimensions,
// normalisation and activation, as each request asks.
struct PoolingFacts {
  PoolingTask task = PoolingTask::kNone;
  PoolingMethod method = PoolingMethod::kLast;
  int32_t width = 0;
  bool normalize = true;            // kEmbed: to length 1, unless a request says otherwise
  std::vector<int32_t> dimensions;  // kEmbed: those that requests may cut to; empty: 1 to width
  LabelActivation activation = LabelActivation::kNone;  // kClassify
  std::vector<PoolingLabel> labels;                     // [width]  kClassify
  PairForm pair_form = PairForm::kJoined;               // kClassify
  bool whole_prompts = false;  // each in one step, without a cached prefix: an encoder
  int32_t num_segments = 1;    // that the model tells apart

  [[nodiscard]] bool pools() const { return task != PoolingTask::kNone; }
  bool operator==(const PoolingFacts&) const = default;
};

}  // namespace warprow
