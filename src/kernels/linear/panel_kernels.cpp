// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/panel_kernels.h"

#include "base/cpu_isa.h"

namespace warprow::cpu {

const PanelKernels& panel_kernels() {
#if defined(__x86_64__)
  switch (cpu_isa()) {
    case CpuIsa::kAvx512:
      return kPanelKernelsAvx512;
    case CpuIsa::kAvx2:
      return kPanelKernelsAvx2;
    case CpuIsa::kGeneric:
      break;
  }
#endif
  return kPanelKernelsGeneric;
}

}  // namespace warprow::cpu
