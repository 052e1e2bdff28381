// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

namespace warprow {

// A row's sampling parameters for kernels. The layout is that of wire/sampling_params.h, which this room may
// not include; the runner asserts that the two agree.
struct alignas(16) SampleParams {
  float temperature = 0.0F;
  float top_p = 1.0F;
  float min_p = 0.0F;
  int32_t top_k = 0;
  uint64_t seed = 0;
  int32_t num_logprobs = -1;
  int32_t min_tokens = 0;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  uint32_t flags = 0;
  int32_t num_prompt_logprobs = -1;
  int32_t reserved[19] = {};
};
static_assert(sizeof(SampleParams) == 128);
static_assert(std::is_trivially_copyable_v<SampleParams>);

}  // namespace warprow
