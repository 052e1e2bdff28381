// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace warprow {

// How a checkpoint's weights are quantised, as config.json says it (quantization_config).
enum class QuantMethod : uint8_t {
  kNone,
  kMxfp4,
  kFp8,
  kModelOptFp8,
  kCompressedTensors,
  kAwq,
  kGptq
};

// What the numbers of a quantised matrix are: w = scale * number, or scale * (number - zero point).
enum class QuantNumber : uint8_t {
  kF8,  // e4m3
  kQ4,  // 0 to 15
  kQ8,  // 0 to 255
};

// What becomes of the inputs of products with e4m3 weights.
enum class QuantInputs : uint8_t {
  kKept,     // nothing
  kDynamic,  // e4m3, with scales from the inputs
  kStatic,   // e4m3, with scales of the checkpoint
};

struct QuantConfig {
  QuantMethod method = QuantMethod::kNone;
  // kFp8, kCompressedTensors: rows and columns that share a scale, where the scales are a matrix.
  int64_t block_rows = 128;
  int64_t block_cols = 128;
  bool has_blocks = false;  // the file states their size
  // kAwq, kGptq.
  int32_t bits = 4;
  int64_t group_size = 128;     // -1: all inputs; kCompressedTensors: of random weights
  bool zeros_less_one = false;  // kGptq: its first version stores zero points less one
  // What the numbers are; none: weights stay as they are. Of several groups of modules the first counts.
  std::optional<QuantNumber> number;
  QuantInputs inputs = QuantInputs::kKept;  // of e4m3 weights
  bool int8_inputs = false;                 // int8 weights were made for inputs of 8 bits
  // Modules that stay as they are: names, or prefixes of them.
  std::vector<std::string> ignored;

  // Errors: another method, named with the known ones; a value that no kernel or reader takes, with its key.
  static Result<QuantConfig> read(const nlohmann::json& config, const std::string& path);
  // Whether the weight's module stays as it is. Only LoadFormat::kDummy needs to know; tensors say it by their names.
  [[nodiscard]] bool ignores(std::string_view weight) const;
};

}  // namespace warprow
