// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>
#include <type_traits>

namespace warprow {

// Stateless random numbers: a function of (seed, position, purpose, token id) only, so a request draws the same
// ones alone or in any batch, before and after preemption, on CPU and on CUDA. Integers only: exact everywhere.
//
// Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011: ten
// rounds turn a counter of 4 x 32 bits under a key of 2 x 32 bits into 4 x 32 random bits.

// The use of a draw: different purposes at one position are independent.
enum class RandomPurpose : uint32_t { kSample = 0, kAccept = 1, kRecover = 2, kDraft = 3 };

constexpr uint32_t kPhiloxMul0 = 0xD2511F53U;
constexpr uint32_t kPhiloxMul1 = 0xCD9E8D57U;
constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9U;
constexpr uint32_t kPhiloxKeyStep1 = 0xBB67AE85U;
constexpr int kPhiloxRounds = 10;

struct PhiloxBlock {
  uint32_t word[4];
};

// The product in 64 bits.
WR_HD constexpr uint64_t mul_wide(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {  // nvcc's own multiply costs an addition more
    return static_cast<uint64_t>(__umulhi(a, b)) << 32 | a * b;
  }
#endif
  return static_cast<uint64_t>(a) * b;
}

WR_HD constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = mul_wide(kPhiloxMul0, counter.word[0]);
    const uint64_t b = mul_wide(kPhiloxMul1, counter.word[2]);
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(a)}};
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return counter;
}

// A row's stream of draws at one position (that of the logit's input token).
struct RandomKey {
  uint64_t seed;
  uint32_t position;
  RandomPurpose purpose;
};

// The 32 random bits of one token id: key = seed, counter = (position, purpose, token / 4, 0), word
// token % 4.
WR_HD constexpr uint32_t random_bits(const RandomKey& key, uint32_t token) {
  const PhiloxBlock block =
      philox4x32_10({{key.position, static_cast<uint32_t>(key.purpose), token / 4, 0}},
                    static_cast<uint32_t>(key.seed),
                    static_cast<uint32_t>(key.seed >> 32));
  return block.word[token % 4];
}

// Uniform in the open interval (0, 1): the middle of the bits' cell, (bits + 1/2) / 2^32, exact in
// double.
WR_HD constexpr double uniform_open(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 2.3283064365386962890625e-10;
}

}  // namespace warprow
