// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/top_k_top_p.h"

#include <cstdint>

namespace warprow::cpu {

// Log-probabilities of a row, for chosen ids only: never a log-softmax of all of it. `lse` is its
// log_sum_exp, or 0 where logits are to be told as they are.

// log of the sum of e^x.
double log_sum_exp(const TokenRow& row);

// How many logits are at least the token's, itself included: 1 is the likeliest, and ties count
// against it.
int32_t token_rank(const TokenRow& row, int32_t token);

// The k likeliest tokens, most likely first, lowest id first at ties. Columns from the row's end on
// get id -1 and -inf.
void top_logprobs(const TokenRow& row, double lse, int32_t k, int32_t* ids, float* logprobs);

// The same for the tokens named in ids [n], in their order; one that is no token is told as -inf.
void logprobs_of(const TokenRow& row,
                 double lse,
                 const int32_t* named,
                 int32_t n,
                 int32_t* ids,
                 float* logprobs);

// The row as the draw saw it: -inf for tokens outside `cut`, except `first`, from which the draw
// begins. values [n] and group_max are scratch that the result lies in.
TokenRow row_of_survivors(
    const TokenRow& row, const Cut& cut, int32_t first, float* values, float* group_max);

}  // namespace warprow::cpu
