// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cmath>

namespace warprow {

// The smallest scaled logit that survives min_p. A token survives if its probability is at least min_p times
// that of the most likely token, that is x >= max + ln(min_p). min_p is in (0, 1].
WR_HD inline float min_p_threshold(float max, float min_p) { return max + logf(min_p); }

}  // namespace warprow
