// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Our own CUDA kernels (kernels/attention/native): bf16 cache, head sizes 64, 128 and, on Hopper, 256, up to 16
// query heads per KV head, any block size of whole 16 tokens, any strides; sm_80 and later.
//
// One small launch per KV group prepares a step, from device data. Its decode rows and its other rows are two
// launches per layer. Every grid depends on padded counts only.
//
// Determinism: with batch_invariant a query's result is a function of the query and its keys, bit for bit. On Hopper
// the kernels for decode rows and for prompts share one order of sums (ADR 0021); on other GPUs one kernel takes all
// rows. Otherwise a decode row may be split over several blocks, and where it is split depends on the lengths in the
// batch, which changes its last bits. Equal batches give equal results: the order in which float32 parts are added is
// fixed too.
const AttentionCapabilities& native_attention_capabilities();
std::unique_ptr<AttentionBackend> make_native_attention();

}  // namespace warprow
