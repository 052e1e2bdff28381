// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "config/pooling_facts.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace warprow {

// A client's request to a pooling model, before validation.
struct PoolingRequest {
  std::variant<std::string, std::vector<TokenId>> prompt;
  // Tokens from this one on are a second segment (a document behind its query), for models that tell them apart; 0: none.
  int32_t second_segment = 0;
  std::optional<PoolingTask> task;  // what the vectors must be; unset: what the model yields
  bool of_tokens = false;           // a vector for each token of the prompt
  std::optional<int64_t>
      dimensions;                  // embeddings: cut to so many values, before they are normalised
  std::optional<bool> normalize;   // embeddings: to length 1; default: as the model's files say
  std::optional<bool> activation;  // classes: probabilities; false: logits. Default: true
  int32_t priority = 0;
  std::string cache_salt;
};

// How an answer's vectors are made of the runner's.
struct VectorForm {
  int32_t dimensions = 0;  // cut to so many values; 0: keep all
  bool normalize = false;  // to length 1
  LabelActivation activation = LabelActivation::kNone;
};

// Appends a vector in the given form to `out`. The length is summed in float64. A vector of zeros stays as it is.
void append_vector(std::span<const float> vector, const VectorForm& form, std::vector<float>& out);

// The cosine of the angle between two vectors of one width; 0 if one of them has only zeros.
[[nodiscard]] double cosine(std::span<const float> a, std::span<const float> b);

}  // namespace warprow
