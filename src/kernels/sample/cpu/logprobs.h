// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/cpu/top_k_top_p.h"

#include <cstdint>

namespace warprow::cpu {

// Log-probabilities of a row, for chosen ids only: never a log-softmax of the whole row. `lse` is the row's
// log_sum_exp, or 0 to report logits.

// log of the sum of e^x.
double log_sum_exp(const TokenRow& row);

// Rank of a token: the number of logits that are at least the token's, itself included. 1 is the most likely;
// ties count against it.
int32_t token_rank(const TokenRow& row, int32_t token);

// The k most likely tokens, most likely first, lowest id first at ties. Columns past the row's end get id -1
// and -inf.
void top_logprobs(const TokenRow& row, double lse, int32_t k, int32_t* ids, float* logprobs);

// The same for the tokens `named` [n], in their order; an id outside the vocabulary gets -inf.
void logprobs_of(const TokenRow& row,
                 double lse,
                 const int32_t* named,
                 int32_t n,
                 int32_t* ids,
                 float* logprobs);

// Copies the values of the tokens that a draw could take, those in `cut` and `first`, with which it begins. -inf for others.
void mask_others(const TokenRow& row, const Cut& cut, int32_t first, float* values);

// The row as the draw saw it: -inf for tokens outside `cut`, except `first`, with which the draw begins.
// values [n] and group_max are scratch; the result points to them.
TokenRow row_of_survivors(
    const TokenRow& row, const Cut& cut, int32_t first, float* values, float* group_max);

}  // namespace warprow::cpu
