// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/view.h"
#include "kernels/experts/fill_mxfp4.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/linear/quant/fill_quant.h"
#include "kernels/random/fill_random.h"
#include "layers/tensor_spec.h"
#include "layers/upload_weights.h"
#include "layers/weight_format.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace warprow {

// The source of parameters.
enum class LoadFormat : uint8_t {
  kAuto,  // the checkpoint
  // None: matrices are random with a deviation of 2 / sqrt(inputs), so that every product after a norm, logits
  // included, has a deviation of about 2 (MXFP4: up to a factor of 1.5 from it); vectors are ones, biases zeros. Quantised
  // weights have random numbers and scales (kernels/random/random_quant.h). The same numbers on every device and in
  // every rank's part: a function of the tensor's name and the place in it. A GPU fills its own memory.
  kDummy,
};

// Turns a checkpoint's tensors into device parameters, in the order in which the model requests them, each in the
// form that its format has on this device (layers/weight_format.h). On a shape-only stream it only moves the
// arena's mark, so that the same code plans the memory.
//
// Owns: host constants until finish has copied them.
// Thread: one; finish runs several threads of its own.
// Invariant: what it returned is filled after finish, which a shape-only loader need not call.
class ParameterLoader {
 public:
  // Called repeatedly with the bytes of the checkpoint read so far; in finish by its threads, one at a time.
  using Progress = std::function<void(int64_t bytes)>;
  // What becomes of weights that are quantised, or shall be.
  struct Quantisation {
    static constexpr int32_t kLeastGroup = 32;
    // kF8 or kQ8: matrices of linear operations and of experts that are not quantised become such numbers (rounded_matrix.h);
    // kQ8 on a CPU: that of the logits too.
    std::optional<QuantNumber> rounds_to = {};
    // kQ8: inputs that share a scale, if a matrix has a multiple of them; else kLeastGroup.
    int32_t group = kLeastGroup;
    bool exact = true;  // on a CPU values are not rounded
    // Products of e4m3 weights round their inputs, where the checkpoint or rounds_to wants it.
    bool rounds_inputs = true;
  };
  // rows: the type of weights on CUDA, kBF16 or kF32.
  ParameterLoader(const Checkpoint& checkpoint,
                  Stream& stream,
                  Arena& arena,
                  LoadFormat format = LoadFormat::kAuto,
                  DType rows = DType::kBF16,
                  Progress progress = {},
                  const Quantisation& quantisation = {
                      .rounds_to = {}, .group = 32, .exact = true, .rounds_inputs = true});

  // A matrix for kernels/linear. Throws StartupError for a tensor that is missing, has another shape or type than
  // the spec and its format declare, or cannot be split as they declare.
  PackedWeight matrix(const TensorSpec& spec) { return stacked({&spec, 1}); }
  // Whether the specs' matrices, stacked by rows, are one matrix on this device: if all of them become the same
  // kind of rows there.
  [[nodiscard]] bool stacks(std::span<const TensorSpec> specs) const;
  // Loads them as one matrix. Panels can be one matrix too, if all are of one kind and all but the last consist of
  // whole panels. Throws StartupError, naming two tensors, for specs that cannot be one.
  PackedWeight stacked(std::span<const TensorSpec> specs);
  // A vector (spec.rows is 1) as f32, the rank's part of it. Its tensor must have a type with values.
  View<const float, 1> vector(const TensorSpec& spec);
  [[nodiscard]] bool has(const std::string& name) const { return checkpoint_.has_weight(name); }
  // Whether a matrix is to be taken from this tensor: it is there, or no tensor is looked at.
  [[nodiscard]] bool provides(const std::string& name) const {
    return format_ == LoadFormat::kDummy || has(name);
  }
  // Whether experts' matrices in these tensors keep GGUF's MXFP4 on this device: it has kernels for it, and all are in that type.
  [[nodiscard]] bool keeps_mxfp4_blocks(std::initializer_list<std::string> names) const;
  // Whether numbers come from the checkpoint.
  [[nodiscard]] bool reads_checkpoint() const { return format_ != LoadFormat::kDummy; }
  // Copies values that are not in the checkpoint.
  View<const float, 1> constants(std::vector<float> values);
  // The host's copy of a small vector, as f32.
  [[nodiscard]] std::vector<float> read_vector(const TensorSpec& spec) const;

  // The device that it loads for.
  [[nodiscard]] const DeviceFacts& device() const { return stream_.device().facts(); }
  [[nodiscard]] DeviceKind device_kind() const { return device().kind; }

  // Waits until everything is on the device.
  void finish();

 private:
  // A rank's part of one of a matrix's tensors.
  struct PlacedSource {
    const TensorSpec* spec;
    const DeviceForm* form;
    TensorRegion region;
    TensorRegion scales;       // MXFP4's, if the region has numbers alone
    TensorRegion second_half;  // TensorSpec::second_half
    int64_t rows;              // of the matrix
    int64_t cols;
    size_t offset;                        // in the matrix's bytes
    const QuantMatrix* matrix = nullptr;  // instead of the region: a part of it
    QuantPart part = {};
  };

  const WeightFormat& format_of(const TensorSpec& spec) const;
  [[nodiscard]] const WeightFormat& random_format_of(const TensorSpec& spec) const;
  // Null: the weight is not quantised, and is not to be.
  const WeightFormat* quant_format_of(const TensorSpec& spec) const;
  // Whether the matrix of the logits, which may be the embeddings too, shall be quantised: a CPU has int8 kernels for both.
  [[nodiscard]] bool rounds_head() const;
  // Whether matrices of so many columns that are not quantised shall be.
  [[nodiscard]] bool rounds_whole_groups(int64_t cols) const;
  // Inputs that share a scale in such a matrix of int8.
  [[nodiscard]] int32_t rounded_group(int64_t cols) const;
  [[nodiscard]] std::unique_ptr<QuantMatrix> quant_matrix_of(const TensorSpec& spec) const;
  // The forms of the specs' matrices on this device. Tiles of GGUF types that differ become tiles that hold all of them, other
  // tiles that differ rows.
  [[nodiscard]] std::vector<const DeviceForm*> forms_of(std::span<const TensorSpec> specs) const;
  void check_stack(std::span<const TensorSpec> specs) const;
  [[nodiscard]] const DeviceForm& form_of(const WeightFormat& format) const {
    return format.on(device_kind(), rows_);
  }
  std::vector<PlacedSource> place(std::span<const TensorSpec> specs, size_t& bytes);
  TensorRegion region_of(const TensorSpec& spec,
                         const WeightFormat& format,
                         const SourcePart& part);
  void load(const PlacedSource& source, const PackedWeight& weight, std::byte* data);
  void load_quantised(const PlacedSource& source, const PackedWeight& weight, std::byte* dst);
  PackedWeight random(std::span<const TensorSpec> specs);
  void add_random(
      const TensorSpec& spec, const DeviceForm& form, int64_t rows, int64_t cols, std::byte* dst);
  void report(size_t bytes);

  const Checkpoint& checkpoint_;
  Stream& stream_;
  Arena& arena_;
  LoadFormat format_;
  DType rows_;
  Progress progress_;
  int64_t bytes_read_ = 0;
  std::deque<std::vector<float>> constants_;
  std::deque<TensorSource> folded_;  // tensors as SourcePart::folded has them
  Quantisation quantisation_;
  // By the weight's name and its part's size; null: not quantised.
  mutable std::unordered_map<std::string, std::unique_ptr<WeightFormat>> quant_formats_;
  mutable std::unordered_map<std::string, std::unique_ptr<QuantMatrix>> quant_matrices_;
  std::vector<WeightUpload> uploads_;
  std::vector<FillRandomArgs> fills_;
  std::vector<cuda::FillMxfp4Args> tile_fills_;
  std::vector<cuda::FillQuantArgs> quant_fills_;
};

}  // namespace warprow
