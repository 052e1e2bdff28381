// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_isa.h"

#include "base/error.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ranges>
#include <string_view>

#include <fmt/format.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace warprow {
namespace {

#if defined(__x86_64__)
// A process must request AMX tiles from Linux before it uses them. The permission holds for all of its threads. Linux
// refuses it before 5.16, and if a thread's signal stack is too small.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// On a machine with AVX2. Not every compiler that builds this knows its name at run time.
bool detect_avx_vnni() {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1U << 4) != 0;
}

bool is_intel() {
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
}
#else
bool is_intel() { return false; }
#endif

// The compiler's run-time check covers the operating system's part (XGETBV) too.
CpuIsa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return CpuIsa::kGeneric;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni")) {
    if (!__builtin_cpu_supports("avx512bf16")) {
      return CpuIsa::kAvx512;
    }
    const bool has_tiles = __builtin_cpu_supports("amx-tile") &&
                           __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16");
    return has_tiles && may_use_tiles() ? CpuIsa::kAmx : CpuIsa::kAvx512Bf16;
  }
  return detect_avx_vnni() ? CpuIsa::kAvxVnni : CpuIsa::kAvx2;
#else
  return CpuIsa::kGeneric;
#endif
}

std::atomic<CpuIsa>& current() {
  static std::atomic<CpuIsa> isa{chosen_cpu_isa(std::getenv("WARPROW_CPU_ISA"),
                                                detected_cpu_isa(),
                                                preferred_cpu_isa(detected_cpu_isa(), is_intel()),
                                                has_cpu_isa(CpuIsa::kAvxVnni))};
  return isa;
}

// The best set of this machine that is not above `isa`.
CpuIsa best_up_to(CpuIsa isa) {
  return *std::ranges::find_if(kCpuIsas | std::views::reverse,
                               [isa](CpuIsa set) { return set <= isa && has_cpu_isa(set); });
}

}  // namespace

CpuIsa detected_cpu_isa() {
  static const CpuIsa isa = detect();
  return isa;
}

bool has_cpu_isa(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvxVnni && detected_cpu_isa() > isa) {
    static const bool has = detect_avx_vnni();
    return has;
  }
#endif
  return isa <= detected_cpu_isa();
}

CpuIsa chosen_cpu_isa(const char* name, CpuIsa best, CpuIsa preferred, bool has_avx_vnni) {
  const std::string_view wanted = name == nullptr ? "" : name;
  if (wanted.empty() || wanted == "auto") {
    return preferred;
  }
  for (const CpuIsa isa : kCpuIsas) {
    if (wanted != cpu_isa_name(isa)) {
      continue;
    }
    if (isa > best || (isa == CpuIsa::kAvxVnni && !has_avx_vnni)) {
      throw StartupError(ErrorCode::kInvalidArgument,
                         fmt::format("WARPROW_CPU_ISA: this machine has no {}; its best set is {}",
                                     wanted,
                                     cpu_isa_name(best)));
    }
    return isa;
  }
  throw StartupError(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "WARPROW_CPU_ISA: '{}' is none of auto|generic|avx2|avx_vnni|avx512|avx512_bf16|amx",
          wanted));
}

CpuIsa cpu_isa() { return current().load(std::memory_order_relaxed); }

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kGeneric:
      return "generic";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvxVnni:
      return "avx_vnni";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "?";
}

ScopedCpuIsa::ScopedCpuIsa(CpuIsa isa) : previous_(current().exchange(best_up_to(isa))) {}
ScopedCpuIsa::~ScopedCpuIsa() { current().store(previous_); }

}  // namespace warprow
