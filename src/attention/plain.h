// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Our CUDA kernel without tensor cores (kernels/attention/plain): head sizes up to 512 in multiples of 8, any number of
// query heads per KV head, any block size and strides. Slow. With a float32 cache it is the backend `float32`, with a bf16
// cache `plain`, for head sizes that no other backend has.
//
// A query's result is a function of the query and its keys, bit for bit. The grid depends on padded counts only.
const AttentionCapabilities& float32_attention_capabilities();
std::unique_ptr<AttentionBackend> make_float32_attention();
const AttentionCapabilities& plain_attention_capabilities();
std::unique_ptr<AttentionBackend> make_plain_attention();

}  // namespace warprow
