// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace warprow {

// Rotary position embedding (Su et al., RoFormer) and the ways in which checkpoints scale it.
enum class RopeScaling : uint8_t {
  kNone,
  kLinear,  // all frequencies divided by factor
  kLlama3,  // low frequencies divided, high ones kept, smooth between (Llama 3.1's rule)
};

struct RopeSpec {
  int32_t rot_dim = 0;  // leading dims of a head that are rotated, even
  float theta = 10000.0F;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0F;
  float low_freq_factor = 1.0F;          // kLlama3
  float high_freq_factor = 4.0F;         // kLlama3
  int32_t original_max_position = 8192;  // kLlama3
};

// Inverse frequencies [rot_dim / 2], in f32 throughout as transformers computes them.
std::vector<float> rope_inv_freq(const RopeSpec& spec);

}  // namespace warprow
