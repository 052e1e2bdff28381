// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"

#include <memory>

namespace warprow {

// Two backends for one group: the step's decode rows go to `native`, the rows with several tokens to
// `flashinfer` (Hopper); each is the faster one there. Under batch_invariant every row goes to
// `flashinfer`, since a token that is decoded now may be a chunk's last elsewhere. What it can do is
// what both can.
const AttentionCapabilities& phased_attention_capabilities();
std::unique_ptr<AttentionBackend> make_phased_attention();

}  // namespace warprow
