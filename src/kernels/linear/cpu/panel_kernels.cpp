// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cpu/panel_kernels.h"

#include "base/cpu_isa.h"

#if defined(__aarch64__)
#include <sys/auxv.h>

#include <asm/hwcap.h>
#endif

namespace warprow::cpu {
namespace {

#if defined(__x86_64__)
// AMX multiplies int8 faster than AVX-512 does from about this many rows on, and groups of 16 inputs never
// (docs/experiments/cpu_kernels.md). Both have the same bits.
constexpr int64_t kMinAmxRows = 32;

void int8_panels_amx_or_avx512(const PanelJob& job, const Int8Rows& rows) {
  if (job.num_rows >= kMinAmxRows && job.group == 32) {
    int8_panels_amx(job, rows);
  } else {
    panel_kernels_avx512().int8_panels(job, rows);
  }
}
#endif

}  // namespace

const PanelKernels& panel_kernels() {
#if defined(__x86_64__)
  static const PanelKernels with_amx = [] {
    PanelKernels kernels = panel_kernels_avx512();
    kernels.name = "amx";
    kernels.int8_panels = &int8_panels_amx_or_avx512;
    kernels.round_row = &round_row_amx;
    kernels.bf16_panels = &bf16_panels_amx;
    kernels.takes_tiles = true;
    return kernels;
  }();
  if (cpu_isa() >= CpuIsa::kAmx) {
    return with_amx;
  }
  static const PanelKernels with_bf16 = [] {
    PanelKernels kernels = panel_kernels_avx512();
    kernels.name = "avx512_bf16";
    kernels.bf16_panels = &bf16_panels_avx512bf16;
    return kernels;
  }();
  if (cpu_isa() >= CpuIsa::kAvx512Bf16) {
    return with_bf16;
  }
  static const PanelKernels with_vnni = [] {
    PanelKernels kernels = panel_kernels_avx2();
    kernels.name = "avx_vnni";
    kernels.int8_panels = &int8_panels_avxvnni;
    return kernels;
  }();
  if (cpu_isa() == CpuIsa::kAvxVnni) {
    return with_vnni;
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
