// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "base/philox.h"

namespace warprow {

// Verification by ratio of Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, and Chen et
// al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023. With p the distribution of the token
// under all rules and q that of the draft: the draft is accepted with probability min(1, p / q), and a rejected one is
// replaced by a draw from max(0, p - q), normalised. The token then has the distribution p. This needs draft, acceptance
// and replacement to be independent: each has a purpose of its own.
//
// p is given as a mass: p = mass / total.

// A rejected draft has no remaining mass, so the replacement is another token.
WR_HD inline bool accepts_draft(float mass, double total, double q, const RandomKey& key) {
  return uniform_open(random_bits(key, 0)) * (q * total) < static_cast<double>(mass);
}

// A token's mass less q times the total; 0 if that is negative.
WR_HD inline float remaining_mass(float mass, double total, double q) {
  const double left = static_cast<double>(mass) - q * total;
  return left > 0.0 ? static_cast<float>(left) : 0.0F;
}

}  // namespace warprow
