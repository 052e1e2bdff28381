// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow::test {

inline constexpr int64_t kMiB = int64_t{1} << 20;

}  // namespace warprow::test
