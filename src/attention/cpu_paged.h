// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Paged attention on the CPU (kernels/attention).
const AttentionCapabilities& cpu_paged_capabilities();
std::unique_ptr<AttentionBackend> make_cpu_paged();

}  // namespace warprow
