// SPDX-License-Identifier: Apache-2.0
// The attention kernel without tensor cores, bf16, at head sizes that the others lack. Its float32 form:
// float32_cuda_test.cpp.
#include "kernels/attention/plain/plain_attention.h"
#include "tests/cuda/attention_fixture.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {
namespace {

class PlainAttentionCuda : public AttentionCudaTest {
 protected:
  Result run_plain() {
    const PagedAttentionArgs args = cuda_args();
    cuda::plain_attention(stream(), args);
    return fetch(args);
  }
};

const std::vector<AttentionRow> kRows = {{1, 1}, {17, 17}, {1, 130}, {40, 300}, {129, 129}};

TEST_F(PlainAttentionCuda, AgreesWithTheCpu) {
  for (const AttentionCase& c :
       {AttentionCase{.q_heads = 4, .kv_heads = 1, .dim = 256, .rows = kRows},
        AttentionCase{.q_heads = 8, .kv_heads = 4, .dim = 256, .window = 33, .rows = kRows},
        AttentionCase{.q_heads = 8, .kv_heads = 4, .dim = 256, .soft_cap = 20.0F, .rows = kRows},
        AttentionCase{.q_heads = 8, .kv_heads = 1, .dim = 512, .rows = kRows},
        AttentionCase{.q_heads = 6, .kv_heads = 2, .dim = 80, .sinks = true, .rows = kRows},
        AttentionCase{.q_heads = 4, .kv_heads = 2, .dim = 512, .nhd = true, .rows = kRows}}) {
    SCOPED_TRACE(c.text());
    build(c, 7);
    expect_near(run_plain(), run_cpu());
    arena().reset();
  }
}

}  // namespace
}  // namespace warprow::testing
