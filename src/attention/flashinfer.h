// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Kernels of FlashInfer (kernels/attention/flashinfer_*) for a bf16 cache with head sizes 64 and 128,
// any strides, causal, without sinks and soft cap.
//
// Nothing is planned on the host: one or two small launches per step and KV group make the tables
// and the list of work from what is on the device.

// Hopper's: XQA for rows with one token, its prefill for the others. Up to 8 query heads per KV
// head, no window.
const AttentionCapabilities& flashinfer_capabilities();
std::unique_ptr<AttentionBackend> make_flashinfer();

// The FA2 template under the same name, for what the others lack: windows, any group, any GPU.
const AttentionCapabilities& flashinfer_fa2_capabilities();
std::unique_ptr<AttentionBackend> make_flashinfer_fa2();

}  // namespace warprow
