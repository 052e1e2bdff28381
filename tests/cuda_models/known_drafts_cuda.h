// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/known_drafts.h"

namespace warprow::test {

void launch_propose_on_cuda(Stream& stream, const ProposeKnown& op, int64_t num_items);

}  // namespace warprow::test
