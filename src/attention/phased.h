// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Two backends for one group: the step's decode rows go to `native`, the rows with several tokens to `flashinfer`
// (Hopper); each is the faster one for these. Not batch-invariant: the two have different orders of sums. It supports
// what both support.
const AttentionCapabilities& phased_attention_capabilities();
std::unique_ptr<AttentionBackend> make_phased_attention();

}  // namespace warprow
