// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/model_rig.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

namespace warprow::test {

// A request whose prompt depends only on its id. Tokens are in [3, vocab_size).
inline Request numbered_request(uint64_t id,
                                int32_t prompt_len,
                                int32_t max_tokens,
                                int32_t vocab_size) {
  Request request;
  request.id = id;
  for (int32_t i = 0; i < prompt_len; ++i) {
    request.prompt.push_back(3 + (i * 7 + static_cast<int32_t>(id) * 11) % (vocab_size - 10));
  }
  request.max_tokens = max_tokens;
  return request;
}

inline void drain(ModelRig& rig) {
  while (rig.executor().num_outstanding() > 0) {
    rig.collect();
  }
}

// Ticks until `steps` more steps have run and their outputs are taken.
inline void run_steps(ModelRig& rig, int64_t steps) {
  const int64_t end = rig.executor().stats().steps + steps;
  while (rig.executor().stats().steps < end) {
    ASSERT_TRUE(rig.tick());
  }
  drain(rig);
}

// Runs steps without rows at these padded sizes, each three times: eager, captured, replayed.
inline void expect_empty_steps_change_nothing(ModelRig& rig, std::array<int32_t, 3> sizes) {
  const auto before = rig.executor().call(StateChecksum{}).get();
  for (size_t i = 0; i < 3 * sizes.size(); ++i) {
    SchedulerOutput step;
    step.step = 1000 + static_cast<int64_t>(i);
    step.data_parallel.num_toks_padded = sizes[i % sizes.size()];
    rig.submit(step);
    ModelRunnerOutput output;
    rig.executor().take_output(output);
    EXPECT_TRUE(output.rows.empty());
    EXPECT_EQ(rig.executor().call(StateChecksum{}).get(), before);
  }
}

}  // namespace warprow::test
