// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string_view>

namespace warprow {

// A count or a number of bytes as people write it, never negative. The suffixes are those of vLLM's
// human-readable integers and of the IEC and SI units:
//
//   32768             plain
//   32k 4m 2g 1t      decimal: 32k = 32,000 (k = 10^3, m = 10^6, g = 10^9, t = 10^12); also kB, KB, MB, GB, TB
//   32K 4M 2G 1T      binary:  32K = 32,768 (K = 2^10, M = 2^20, G = 2^30, T = 2^40)
//   24MiB 4GiB 24Mi   binary:  4GiB = 4,294,967,296
//
// A suffixed number may have a fraction (1.5GiB), which is rounded down to a whole. The message of
// an error starts with the text itself and says what to write instead.
Result<int64_t> parse_size(std::string_view text);

}  // namespace warprow
