// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv/kv_spec.h"
#include "kv/token_pages.h"
#include "models/model.h"
#include "runner/runner.h"

#include <cstdint>

namespace warprow {

// What warm-up needs of a plan.
struct WarmUpLimits {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  TokenPages token_pages = {};
  int32_t vocab_size = 0;
  bool loads_kernels = false;  // DevicePolicy
};

// Runs the work of first requests before there are any, so that no request waits for kernels to load: a chunk of a
// prompt whose row has sampling rules beside a row that decodes; then, where this loads kernels (elsewhere it would
// only cost time), a plain decode of one row; then a step that releases it. It does as much as the limits allow:
// with a cache or rows too small for any token, an empty step.
// The rows own blocks and token pages 1 and up. Afterwards no row is live. The garbage left lies in cells that
// admission overwrites, and in the cache, which the caller zeroes. Steps are numbered up to 0, before the
// scheduler's first.
void warm_up(Runner& runner, const WarmUpLimits& limits, const KvCacheSpec& cache);

// Sets the model's scales of an 8-bit KV cache from one prompt of up to kCalibrationToks fixed tokens, spread over the
// vocabulary, and releases its row. Call it before warm_up; rows, pages and step numbers are as there. A check fails if
// the limits allow no token.
inline constexpr int32_t kCalibrationToks = 512;
void run_calibration(Runner& runner,
                     Model& model,
                     const WarmUpLimits& limits,
                     const KvCacheSpec& cache);

}  // namespace warprow
