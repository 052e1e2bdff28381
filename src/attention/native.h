// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Our own CUDA kernels (kernels/attention/native_*): bf16 cache, head sizes 64 and 128, up to 16
// query heads per KV head, any block size of whole 16 tokens, any strides; sm_80 and later.
//
// A step is prepared by one small launch per KV group, from what is on the device; its decode rows
// and its other rows are two launches a layer. Every grid depends on padded counts alone.
//
// Determinism: the rows with several tokens, and under batch_invariant all rows, get results that
// are functions of their own queries and keys, bit for bit. Otherwise where a decode row is cut for
// several blocks, and so its last bits, depends on the lengths of the batch; equal batches give
// equal results up to the order in which float32 parts are added, which is fixed too.
const AttentionCapabilities& native_attention_capabilities();
std::unique_ptr<AttentionBackend> make_native_attention();

}  // namespace warprow
