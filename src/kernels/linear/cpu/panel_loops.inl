// SPDX-License-Identifier: Apache-2.0
#if defined(__AVX512F__)
#include "kernels/linear/cpu/panel_vector_avx512.h"
#elif defined(__AVX2__)
#include "kernels/linear/cpu/panel_vector_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "kernels/linear/cpu/panel_vector_neon.h"
#else
#include "kernels/linear/cpu/panel_vector_generic.h"
#endif

#if defined(__AMX_INT8__)
#include "kernels/linear/cpu/panel_amx_bf16.h"
#include "kernels/linear/cpu/panel_amx_int8.h"
#else
#include "kernels/linear/cpu/panel_bf16.h"
#endif
#if !defined(__AVX512BF16__) && !defined(__AMX_INT8__)
#if !defined(__AVXVNNI__)
#include "kernels/linear/cpu/panel_float.h"
#endif
#include "kernels/linear/cpu/panel_int8.h"
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#include "kernels/linear/cpu/panel_short_int8.h"
#endif
#endif

namespace warprow::cpu {

#if defined(__AMX_INT8__)

void WR_ISA_NAME(int8_panels)(const PanelJob& job, const Int8Rows& rows) {
  AmxInt8Panels<PanelVector>::run(job, rows);
}

void WR_ISA_NAME(round_row)(const float* x, int64_t k, int64_t step, uint16_t* out) {
  AmxBf16Panels<PanelVector>::round_row(x, k, step, out);
}

void WR_ISA_NAME(bf16_panels)(const PanelJob& job, const Bf16Rows& rows) {
  AmxBf16Panels<PanelVector>::run(job, rows);
}

#elif defined(__AVX512BF16__)

void WR_ISA_NAME(bf16_panels)(const PanelJob& job, const Bf16Rows& rows) {
  Bf16Panels<PanelVector>::run(job, rows);
}

#elif defined(__AVXVNNI__)

void WR_ISA_NAME(int8_panels)(const PanelJob& job, const Int8Rows& rows) {
  Int8Panels<PanelVector>::run(job, rows);
}

#else

#if defined(__AVX2__) && !defined(__AVX512F__)
using IntPanels = ShortInt8Panels<PanelVector>;
#else
using IntPanels = Int8Panels<PanelVector>;
#endif

const PanelKernels& WR_ISA_NAME(panel_kernels)() {
  static constexpr PanelKernels kKernels = {PanelVector::kName,
                                            PanelVector::kBlockRows,
                                            &Int8Panels<PanelVector>::quantise_row,
                                            &Int8Panels<PanelVector>::quantise_wide_row,
                                            &FloatPanels<PanelVector>::run,
                                            &IntPanels::run,
                                            &Bf16Panels<PanelVector>::round_row,
                                            &Bf16Panels<PanelVector>::run};
  return kKernels;
}

#endif

}  // namespace warprow::cpu
