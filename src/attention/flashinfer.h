// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Kernels of FlashInfer (kernels/attention/flashinfer_*): XQA for rows with one token, its Hopper
// prefill for the others. bf16 cache, head sizes 64 and 128, up to 8 query heads per KV head, blocks
// of whole 16 tokens, any strides; sm_90 only; causal attention without window, sinks and soft cap.
//
// Nothing is planned on the host: one or two small launches per step and KV group make the tables
// and the list of work from what is on the device.
const AttentionCapabilities& flashinfer_capabilities();
std::unique_ptr<AttentionBackend> make_flashinfer();

}  // namespace warprow
