// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/top_k_top_p.h"

#include <cstdint>

namespace warprow::cpu {

// Log-probabilities of the raw logits, for chosen ids only: never a log-softmax of the whole row.

// log of the sum of e^x.
double log_sum_exp(const TokenRow& row);

// How many logits are at least the token's, itself included: 1 is the likeliest, and ties count
// against it.
int32_t token_rank(const TokenRow& row, int32_t token);

// The k likeliest tokens, most likely first, lowest id first at ties. Columns from the row's end on
// get id -1 and -inf.
void top_logprobs(const TokenRow& row, double lse, int32_t k, int32_t* ids, float* logprobs);

}  // namespace warprow::cpu
