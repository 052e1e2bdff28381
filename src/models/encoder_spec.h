// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace warprow {

// What an encoder has besides the layers of a DecoderSpec. Its norms are LayerNorms.
struct EncoderSpec {
  // x = norm(x + f(x)) for attention and feed-forward, as in BERT. Else x += f(norm(x)), and a norm behind all layers.
  bool norms_behind = true;
  bool first_norm =
      true;  // norms in front: whether the first layer has one in front of its attention
  bool norm_biases = true;
  // Learned embeddings of positions and segments (token types), which are added to those of ids.
  int32_t num_positions = 0;        // rows of the table; 0: none
  int32_t first_position = 0;       // the row of a text's first token
  int32_t num_segments = 0;         // 0: none
  std::string positions, segments;  // tensors [.., hidden_size]
  std::string embed_norm;
  bool operator==(const EncoderSpec&) const = default;
};

}  // namespace warprow
