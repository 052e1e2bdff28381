// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/linear.h"

#include <cstdint>
#include <vector>

namespace warprow::cuda {

// A linear operation of a model.
struct ModelProduct {
  const char* name;
  int32_t n;
  int32_t k;
  LinearEpilogue epilogue;
  bool norm;  // before it
  bool y_f32;
};

struct ModelProducts {
  const char* name;
  int layers;
  std::vector<ModelProduct> products;  // of one layer, then the head
};

inline const std::vector<ModelProducts>& model_products() {
  using enum LinearEpilogue;
  static const std::vector<ModelProducts> all = {{"Qwen3-0.6B",
                                                  28,
                                                  {{"qkv", 4096, 1024, kStore, true, false},
                                                   {"o", 1024, 2048, kAdd, false, true},
                                                   {"gate_up", 6144, 1024, kSwiGlu, true, false},
                                                   {"down", 1024, 3072, kAdd, false, true},
                                                   {"head", 151936, 1024, kStore, true, true}}},
                                                 {"Qwen3-8B",
                                                  36,
                                                  {{"qkv", 6144, 4096, kStore, true, false},
                                                   {"o", 4096, 4096, kAdd, false, true},
                                                   {"gate_up", 24576, 4096, kSwiGlu, true, false},
                                                   {"down", 4096, 12288, kAdd, false, true},
                                                   {"head", 151936, 4096, kStore, true, true}}}};
  return all;
}

}  // namespace warprow::cuda
