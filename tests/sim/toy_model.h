// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "kv/kv_math.h"
#include "kv/kv_spec.h"

#include <cstdint>
#include <vector>

namespace warprow::testing {

// A toy "transformer" over 64-bit words. Layer l stores k[p] = mix(x[p], p) and outputs x'[p] = x[p] combined with k[q]
// for every q that the layer's KV group lets p see. The first layer's x is the token, and the next token is the last
// layer's x modulo the vocabulary. Every later token depends on every cell that a real model would read. A wrong block
// table, a lost block or a block shared by mistake therefore changes a token.
struct ToyModel {
  std::vector<KvGroupSpec> groups;
  std::vector<int32_t> layer_group;  // [layers] the KV group of each layer
  TokenId vocab_size = 40;

  static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15ULL)) * 0xff51afd7ed558ccdULL;
    x ^= x >> 32;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 29);
  }
  // The first position that `pos` sees in a group.
  static int32_t first_seen(const KvGroupSpec& group, int32_t pos) {
    return group.kind == KvKind::kSlidingWindow ? first_token_in_window(pos, group.window) : 0;
  }
  [[nodiscard]] TokenId token_of(uint64_t x) const {
    return static_cast<TokenId>(x % static_cast<uint64_t>(vocab_size));
  }

  // The oracle: the first num_outputs tokens after the prompt, computed alone and without blocks.
  [[nodiscard]] std::vector<TokenId> generate(std::vector<TokenId> tokens,
                                              int32_t num_outputs) const {
    std::vector<TokenId> outputs;
    std::vector<std::vector<uint64_t>> k(layer_group.size());
    for (int32_t pos = 0; static_cast<int32_t>(outputs.size()) < num_outputs; ++pos) {
      auto x = static_cast<uint64_t>(tokens[static_cast<size_t>(pos)]);
      for (size_t layer = 0; layer < k.size(); ++layer) {
        k[layer].push_back(mix(x, static_cast<uint64_t>(pos)));
        const int32_t first = first_seen(groups[static_cast<size_t>(layer_group[layer])], pos);
        for (int32_t q = first; q <= pos; ++q) {
          x = mix(x, k[layer][static_cast<size_t>(q)]);
        }
      }
      if (pos + 1 == static_cast<int32_t>(tokens.size())) {
        outputs.push_back(token_of(x));
        tokens.push_back(outputs.back());
      }
    }
    return outputs;
  }
};

}  // namespace warprow::testing
