// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// The backend of groups whose layers keep a state and attend to nothing: it hands them the step's metadata.
const AttentionCapabilities& state_pages_capabilities();
std::unique_ptr<AttentionBackend> make_state_pages();

}  // namespace warprow
