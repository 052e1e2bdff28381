// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cpu/compute_pool.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// The most CPU ranks of a group.
inline constexpr int32_t kMaxCpuRanks = 64;

// Where each rank's values are, by rank.
using RankValues = std::array<const float*, kMaxCpuRanks>;

// out[i] = ((values[0][i] + values[1][i]) + values[2][i]) + ... over num_ranks ranks, for i < n. `out` may be one of
// the inputs. The bits do not depend on the number of threads.
void sum_in_rank_order(
    ComputePool& pool, const RankValues& values, int32_t num_ranks, float* out, int64_t n);

// memcpy, divided over the pool's threads if it is large.
void copy_bytes(ComputePool& pool, std::byte* to, const std::byte* from, size_t bytes);

}  // namespace warprow::cpu
