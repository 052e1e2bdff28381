// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/device.h"
#include "device/stream.h"

// WR_OP(rms_norm, RmsNormArgs) declares an operation: one function per backend, and the function for callers,
// which sends the arguments to the stream's backend. For a build without CUDA, kernels/no_cuda.cpp has one
// stub line per op, so that file is also the list of operations.
#define WR_OP(name, Args)                                    \
  namespace cpu {                                            \
  void name(Stream& stream, const Args& args);               \
  }                                                          \
  namespace cuda {                                           \
  void name(Stream& stream, const Args& args);               \
  }                                                          \
  inline void name(Stream& stream, const Args& args) {       \
    if (stream.device().facts().kind == DeviceKind::kCuda) { \
      cuda::name(stream, args);                              \
    } else {                                                 \
      cpu::name(stream, args);                               \
    }                                                        \
  }                                                          \
  static_assert(true)
