// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/sigmoid_gate.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"

#include <cmath>
#include <cstdint>

namespace warprow::cpu {
namespace {

float gate_of(const float* x, const View<const float, 1>& gate) {
  constexpr int64_t kChains = 16;
  const int64_t inputs = gate.shape[0];
  float sums[kChains] = {};
  int64_t k = 0;
  for (; k + kChains <= inputs; k += kChains) {
    for (int64_t i = 0; i < kChains; ++i) {
      sums[i] += gate.data[k + i] * x[k + i];
    }
  }
  for (int64_t i = 0; k + i < inputs; ++i) {
    sums[i] += gate.data[k + i] * x[k + i];
  }
  float sum = 0.0F;
  for (const float chain : sums) {
    sum += chain;
  }
  return 1.0F / (1.0F + std::exp(-sum));
}

}  // namespace

void sigmoid_gate(Stream& stream, const SigmoidGateArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], args.gate.shape[0]);
  const View<const float, 2> x = args.x.f32();
  const View<float, 2> y = args.y.f32();
  const View<const float, 1> gate = args.gate;
  as_cpu(stream).launch("sigmoid_gate", [x, y, gate](ComputePool& pool) {
    pool.parallel_for(y.shape[0], 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        const float scale = gate_of(x.row(t), gate);
        float* row = y.row(t);
        for (int64_t i = 0; i < y.shape[1]; ++i) {
          row[i] *= scale;
        }
      }
    });
  });
}

}  // namespace warprow::cpu
