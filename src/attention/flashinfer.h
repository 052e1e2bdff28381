// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Kernels of FlashInfer (kernels/attention/flashinfer_*) for a bf16 cache with head sizes 64 and 128,
// any strides, causal, without sinks and soft cap.
//
// Nothing is planned on the host: one or two small launches per step and KV group build the tables and the work
// list from device data.

// For Hopper: XQA for rows with one token, FlashInfer's prefill kernel for the others. Up to 8 query heads per KV
// head, no window.
const AttentionCapabilities& flashinfer_capabilities();
std::unique_ptr<AttentionBackend> make_flashinfer();

// The FA2 template under the same name, for what these do not support: windows, any group, any GPU.
const AttentionCapabilities& flashinfer_fa2_capabilities();
std::unique_ptr<AttentionBackend> make_flashinfer_fa2();

}  // namespace warprow
