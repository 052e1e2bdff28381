// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cpu/panel_kernels.h"

#include "base/cpu_isa.h"

#if defined(__aarch64__)
#include <sys/auxv.h>

#include <asm/hwcap.h>
#endif

namespace warprow::cpu {

const PanelKernels& panel_kernels() {
#if defined(__x86_64__)
  static const PanelKernels with_bf16 = [] {
    PanelKernels kernels = panel_kernels_avx512();
    kernels.name = "avx512_bf16";
    kernels.bf16_panels = &bf16_panels_avx512bf16;
    return kernels;
  }();
  if (cpu_isa() >= CpuIsa::kAvx512Bf16) {
    return with_bf16;
  }
#elif defined(__aarch64__)
  static const bool has_dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  if (has_dot) {
    return panel_kernels_neon();
  }
#endif
  return WR_ISA_PICK(panel_kernels)();
}

}  // namespace warprow::cpu
