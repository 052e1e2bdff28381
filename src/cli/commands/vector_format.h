// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/engine.h"

#include <cstdint>
#include <memory>
#include <string>

namespace warprow {

// How `warprow embed` writes its results, in the order of the lines.
class VectorFormat {
 public:
  VectorFormat() = default;
  virtual ~VectorFormat() = default;
  VectorFormat(const VectorFormat&) = delete;
  VectorFormat& operator=(const VectorFormat&) = delete;

  // What the file begins with; as long whatever the number.
  [[nodiscard]] virtual std::string head(int64_t num_lines) const = 0;
  [[nodiscard]] virtual std::string result(int64_t line, const RequestUpdate& update) const = 0;
  [[nodiscard]] virtual std::string failure(int64_t line, const Error& error) const = 0;
};

// {"index", "embedding" or "probs", "num_tokens"} or {"index", "error"} a line.
std::unique_ptr<VectorFormat> make_jsonl_format(bool embeds);

// NumPy's file of a float32 array [lines, width], version 1.0 (numpy.org/doc/stable/reference/generated/
// numpy.lib.format.html). The row of a line that failed is all NaN, and the reason is noted on standard error.
std::unique_ptr<VectorFormat> make_npy_format(int32_t width);

}  // namespace warprow
