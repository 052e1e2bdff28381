// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace warprow {

// What PEFT's adapter_config.json says of a LoRA adapter: delta W = scale * B A, scale = alpha / r, or alpha / sqrt(r).
struct PeftConfig {
  int32_t r = 0;
  double alpha = 0;
  bool rslora = false;
  std::string base_model;  // base_model_name_or_path; empty: not given
  // By keys that match modules (module_pattern.h).
  std::vector<std::pair<std::string, int32_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  struct Module {
    int32_t r = 0;
    float scale = 1.0F;
  };
  // Of a module by its full name, as in model.layers.3.self_attn.q_proj.
  [[nodiscard]] Result<Module> of(const std::string& module) const;
};

// Errors name the file, the key and its value: a file that is missing or no LoRA configuration; what is not supported (DoRA,
// biases, modules_to_save, parameters, pissa, ...).
Result<PeftConfig> read_peft_config(const std::string& dir);

}  // namespace warprow
