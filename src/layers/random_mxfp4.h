// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// Random weights of an MXFP4 matrix, in place of a checkpoint: e2m1 numbers with one scale for all.
struct RandomMxfp4 {
  uint64_t seed = 0;
  float scale = 1.0F;  // the deviation that is wanted; a power of two near it is met
  int64_t first = 0;   // the place of the part's first element in the whole tensor
  int64_t stride = 0;  // elements between its rows
  int64_t rows = 0;    // of the part; 0: no random matrix
  int64_t cols = 0;
};

// Twice the e2m1 numbers of row `row` of the part: those next to elements of the vector of random_quad
// (kernels/random/fill_random.h) with a deviation of 1.5.
void random_e2m1_row(const RandomMxfp4& random, int64_t row, int8_t* q);

// The exponent of the scale that goes with the numbers themselves: 2^exponent.
int random_mxfp4_exponent(const RandomMxfp4& random);

}  // namespace warprow
