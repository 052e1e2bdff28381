// SPDX-License-Identifier: Apache-2.0
#include "models/rope_spec.h"

#include <algorithm>
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

// Pairs up to `first` are kept, those from `last` on are divided.
struct YarnRamp {
  double first = 0.0;
  double last = 0.0;
};

YarnRamp yarn_ramp(const RopeSpec& spec) {
  // The pair that rotates so many times over the original length, a real number.
  const auto pair = [&spec](double rotations) {
    return spec.rot_dim *
           std::log(spec.original_max_position / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(double{spec.theta}));
  };
  YarnRamp ramp{pair(spec.beta_fast), pair(spec.beta_slow)};
  if (spec.truncate) {
    ramp = {std::floor(ramp.first), std::ceil(ramp.last)};
  }
  ramp = {std::max(ramp.first, 0.0), std::min(ramp.last, spec.rot_dim - 1.0)};
  if (ramp.first == ramp.last) {
    ramp.last += 0.001;
  }
  return ramp;
}

float yarn_scaled(const RopeSpec& spec, const YarnRamp& ramp, size_t pair, float power) {
  const float at = (static_cast<float>(pair) - static_cast<float>(ramp.first)) /
                   static_cast<float>(ramp.last - ramp.first);
  const float kept = 1.0F - std::clamp(at, 0.0F, 1.0F);
  return 1.0F / (spec.factor * power) * (1.0F - kept) + 1.0F / power * kept;
}

}  // namespace

std::vector<float> rope_inv_freq(const RopeSpec& spec) {
  std::vector<float> inv_freq(static_cast<size_t>(spec.rot_dim / 2));
  const YarnRamp ramp = spec.scaling == RopeScaling::kYarn ? yarn_ramp(spec) : YarnRamp();
  const bool is_long = spec.max_len > spec.original_max_position;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(spec.rot_dim);
    const float power = std::pow(spec.theta, exponent);
    switch (spec.scaling) {
      case RopeScaling::kNone:
        inv_freq[i] = 1.0F / power;
        break;
      case RopeScaling::kLinear:
        inv_freq[i] = 1.0F / power / spec.factor;
        break;
      case RopeScaling::kLlama3:
        inv_freq[i] = llama3_scaled(spec, 1.0F / power);
        break;
      case RopeScaling::kYarn:
        inv_freq[i] = yarn_scaled(spec, ramp, i, power);
        break;
      case RopeScaling::kProportional:
        inv_freq[i] = i < static_cast<size_t>(spec.num_rotated) ? 1.0F / power / spec.factor : 0.0F;
        break;
      case RopeScaling::kLongRope:
        inv_freq[i] = 1.0F / ((is_long ? spec.long_factors : spec.short_factors)[i] * power);
        break;
    }
  }
  return inv_freq;
}

}  // namespace warprow
