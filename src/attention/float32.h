// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Our CUDA kernel for a float32 cache (kernels/attention/float32): head sizes up to 256 in multiples of 8, any number of
// query heads per KV head, any block size and strides. Slow, and exact.
//
// A query's result is a function of the query and its keys, bit for bit. The grid depends on padded counts only.
const AttentionCapabilities& float32_attention_capabilities();
std::unique_ptr<AttentionBackend> make_float32_attention();

}  // namespace warprow
