// SPDX-License-Identifier: Apache-2.0
#include "kernels/logits/cap_logits.h"

#include "device/cpu/cpu_stream.h"
#include "kernels/logits/cap_logits_loops.h"

namespace warprow::cpu {

void cap_logits(Stream& stream, const CapLogitsArgs& args) {
  const auto run_row = WR_ISA_PICK(cap_logits_row);
  as_cpu(stream).launch("cap_logits", [args, run_row](ComputePool& pool) {
    const View<float, 2>& logits = args.logits;
    const auto width = static_cast<int32_t>(logits.shape[1]);
    pool.parallel_for(logits.shape[0], 1, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        run_row(logits.row(t), width, args.divisor, args.soft_cap);
      }
    });
  });
}

}  // namespace warprow::cpu
