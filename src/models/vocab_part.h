// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// The token ids that a rank has of embedding and head. All parts are equally wide; of the last ones, which may be
// empty, less is used.
struct VocabPart {
  int32_t first = 0;
  int32_t count = 0;
  int32_t width = 0;  // of a row of the rank's logits
  bool operator==(const VocabPart&) const = default;
};

}  // namespace warprow
