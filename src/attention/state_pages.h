// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// The backends of KV groups whose layers keep a state and attend to nothing. A backend only passes on the step's metadata.
const AttentionCapabilities& state_pages_capabilities();
std::unique_ptr<AttentionBackend> make_state_pages();
const AttentionCapabilities& state_pages_cuda_capabilities();
std::unique_ptr<AttentionBackend> make_state_pages_cuda();

}  // namespace warprow
