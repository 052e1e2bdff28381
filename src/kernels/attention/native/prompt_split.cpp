// SPDX-License-Identifier: Apache-2.0
// Plain arithmetic, kept out of the CUDA files, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/attention/native/params.h"

#include <algorithm>

namespace warprow::cuda {

PromptSplit prompt_split(int64_t items, int32_t most_tiles, int32_t num_sms) {
  constexpr int32_t kLeastTiles = 12;  // of a piece: shorter ones take long to merge
  const auto of_sms = static_cast<int32_t>(num_sms / items);
  const int32_t parts = num_parts(0, most_tiles * kPartTile) + 1;  // a window may begin inside one
  for (int32_t pieces = std::min(of_sms, most_tiles / kLeastTiles); pieces > 1; --pieces) {
    const int32_t slots = 1 + parts * (pieces - 1) / pieces;
    if (items * std::max(2, slots) <= kMaxPromptParts) {
      return {pieces, ceil_div(most_tiles, pieces), slots};
    }
  }
  return {};
}

}  // namespace warprow::cuda
