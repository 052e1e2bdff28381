// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace warprow {

// Rotary position embedding (Su et al., RoFormer) and the ways in which checkpoints scale it.
enum class RopeScaling : uint8_t {
  kNone,
  kLinear,        // all frequencies divided by factor
  kLlama3,        // low frequencies divided, high ones kept, smooth between (Llama 3.1's rule)
  kYarn,          // the same by numbers of rotations, linear between (Peng et al., YaRN)
  kProportional,  // the first pairs rotate as those of a whole head, the others do not (Gemma 4)
  kLongRope,      // each frequency divided by a factor of its own (Ding et al., LongRoPE)
};

struct RopeSpec {
  int32_t rot_dim = 0;  // leading dims of a head that are rotated, even
  float theta = 10000.0F;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0F;                   // all but kLongRope
  float low_freq_factor = 1.0F;          // kLlama3
  float high_freq_factor = 4.0F;         // kLlama3
  int32_t original_max_position = 8192;  // kLlama3, kYarn, kLongRope
  float beta_fast = 32.0F;               // kYarn: with more rotations a frequency is kept
  float beta_slow = 1.0F;                // kYarn: with fewer it is divided
  bool truncate = true;                  // kYarn: the bounds between are whole pairs
  int32_t num_rotated = 0;               // kProportional: pairs
  // kLongRope [rot_dim / 2]. A model runs with one of the two: with the long ones if sequences may be longer than
  // original_max_position.
  std::vector<float> short_factors = {};
  std::vector<float> long_factors = {};
  int32_t max_len = 0;            // kLongRope: of the longest sequence
  float attention_factor = 1.0F;  // of cosines and sines
  bool interleaved = false;       // pairs are (2i, 2i + 1), else (i, i + rot_dim / 2)
  bool operator==(const RopeSpec&) const = default;
};

// Inverse frequencies [rot_dim / 2], in f32 throughout as transformers computes them.
std::vector<float> rope_inv_freq(const RopeSpec& spec);

}  // namespace warprow
