// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/gguf.h"
#include "files/model_files.h"
#include "weights/quant_config.h"
#include "weights/tensor_type.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace warprow {

// One tensor of a checkpoint, still in its file: a matrix of `rows` rows of `cols` contiguous
// elements. A vector is one row; a tensor of three or more dimensions is the stack of its matrices.
struct TensorSource {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;  // outermost first; empty for a scalar
  int64_t rows = 0;
  int64_t cols = 0;                 // the contiguous dimension: K of a linear layer
  const std::byte* data = nullptr;  // host, mapped, not aligned; lives as long as the Checkpoint
  size_t row_bytes = 0;
  size_t bytes = 0;     // rows * row_bytes
  int file = 0;         // for a later reload: index into Checkpoint::files() ...
  uint64_t offset = 0;  // ... and the place therein
};

// The weights of a model and what describes it, whether it came as GGUF or as safetensors.
// Owns: the mapped files.
// Thread: const methods from any thread.
// Invariant: tensor names are unique; every data pointer is readable for `bytes` bytes.
class Checkpoint {
 public:
  // Reads headers only. Refuses (kUnsupported) tensors of a type that warprow knows by name only and
  // safetensors whose config.json declares a quantisation that warprow does not read, besides everything the
  // readers refuse.
  // With WeightFiles::kNotRead the safetensors of a directory are not looked at: there are no
  // tensors.
  static Result<Checkpoint> open(const ModelFiles& files,
                                 WeightFiles weights = WeightFiles::kRequired);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  [[nodiscard]] const TensorSource* find(std::string_view name) const;  // null if absent
  // Whether the tensor is there, or the tensors that a quantised weight consists of.
  [[nodiscard]] bool has_weight(std::string_view name) const;
  // Whether there is a list of tensors at all.
  [[nodiscard]] bool has_tensors() const { return !tensors_.empty(); }
  // The tensor or a kCorrupt error that names it and the model.
  [[nodiscard]] Result<const TensorSource*> require(std::string_view name) const;
  // The same for a tensor whose elements are to be read as floats; kUnsupported if they are not
  // (integers, 8-bit floats).
  [[nodiscard]] Result<const TensorSource*> require_values(std::string_view name) const;
  [[nodiscard]] std::span<const TensorSource> tensors() const { return tensors_; }
  // Of the tensors that have values, and where weights are quantised of all: no parameter is read from the others.
  [[nodiscard]] size_t total_bytes() const { return total_bytes_; }
  [[nodiscard]] std::span<const std::string> files() const { return paths_; }

  // What describes the model: exactly one of the two is not null.
  [[nodiscard]] const GgufFile* gguf() const;  // of several parts the first
  [[nodiscard]] const nlohmann::json* config_json() const;

  // How config.json says that weights are quantised.
  [[nodiscard]] const QuantConfig& quantisation() const { return quantisation_; }
  // Whether config.json declares that experts are in MXFP4, as pairs of tensors of bytes.
  [[nodiscard]] bool has_mxfp4_experts() const {
    return quantisation_.method == QuantMethod::kMxfp4;
  }

  // The tensor, or `bytes` of it from `begin` on, has been copied: its pages leave this process's
  // memory (a later read brings them back).
  void drop_pages(const TensorSource& tensor) const { drop_pages(tensor, 0, tensor.bytes); }
  void drop_pages(const TensorSource& tensor, uint64_t begin, uint64_t bytes) const;

 private:
  struct Sources;  // the open files
  explicit Checkpoint(std::unique_ptr<Sources> sources);
  Result<void> add_gguf_tensors();
  Result<void> add_tensors_of(const GgufFile& file);
  Result<void> add_safetensors_tensors();
  void add(TensorSource tensor);

  std::unique_ptr<Sources> sources_;
  std::vector<std::string> paths_;
  std::vector<TensorSource> tensors_;
  std::unordered_map<std::string, size_t> index_;
  size_t total_bytes_ = 0;
  QuantConfig quantisation_;
};

}  // namespace warprow
