// SPDX-License-Identifier: Apache-2.0
// There is no kernel yet: config/resolve.cpp refuses what would need it.
#include "kernels/sample/draw_drafts.h"

#include "base/check.h"

namespace warprow::cuda {

void draw_drafts(Stream& /*stream*/, const DrawDraftsArgs& /*args*/) {
  WR_CHECK(false, "no kernel draws drafts");
}

}  // namespace warprow::cuda
