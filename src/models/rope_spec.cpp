// SPDX-License-Identifier: Apache-2.0
#include "models/rope_spec.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace warprow {
namespace {

float llama3_scaled(const RopeSpec& spec, float inv_freq) {
  const auto old_len = static_cast<float>(spec.original_max_position);
  const float wavelength = 2.0F * std::numbers::pi_v<float> / inv_freq;
  if (wavelength < old_len / spec.high_freq_factor) {
    return inv_freq;
  }
  if (wavelength > old_len / spec.low_freq_factor) {
    return inv_freq / spec.factor;
  }
  const float smooth = (old_len / wavelength - spec.low_freq_factor) /
                       (spec.high_freq_factor - spec.low_freq_factor);
  return (1.0F - smooth) * inv_freq / spec.factor + smooth * inv_freq;
}

}  // namespace

std::vector<float> rope_inv_freq(const RopeSpec& spec) {
  std::vector<float> inv_freq(static_cast<size_t>(spec.rot_dim / 2));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(spec.rot_dim);
    float value = 1.0F / std::pow(spec.theta, exponent);
    if (spec.scaling == RopeScaling::kLinear) {
      value /= spec.factor;
    } else if (spec.scaling == RopeScaling::kLlama3) {
      value = llama3_scaled(spec, value);
    }
    inv_freq[i] = value;
  }
  return inv_freq;
}

}  // namespace warprow
