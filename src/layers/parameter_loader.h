// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/view.h"
#include "kernels/linear/packed_weight.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace warprow {

// How a checkpoint orders the output rows of a matrix.
enum class RowOrder : uint8_t {
  kPlain,
  // Within each head, rope's pairs lie side by side (GGUF of the llama family); loading puts the
  // halves back.
  kRopePairs,
};

// Where a checkpoint's matrix or vector lies and what it must look like.
struct TensorWish {
  std::string name;
  int64_t rows = 1;
  int64_t cols = 0;
  RowOrder order = RowOrder::kPlain;
  int32_t head_dim = 0;  // kRopePairs
};

// Turns a checkpoint's tensors into device parameters, in the order the model asks for them. On a
// shape-only stream it only moves the arena's mark, so that the very same code plans the memory.
//
// Owns: host constants on their way to the device, until finish.
// Thread: one.
// Invariant: what it returned is usable on the stream at once, on the host after finish.
class ParameterLoader {
 public:
  // Called after each tensor with the bytes of the checkpoint read so far.
  using Progress = std::function<void(int64_t bytes)>;
  ParameterLoader(const Checkpoint& checkpoint,
                  Stream& stream,
                  Arena& arena,
                  Progress progress = {});

  // A matrix for kernels/linear in its own format. Throws StartupError for a missing tensor or a
  // wrong shape.
  PackedWeight matrix(const TensorWish& wish);
  // A vector (wish.rows is 1) as f32.
  View<const float, 1> vector(const TensorWish& wish);
  [[nodiscard]] bool has(const std::string& name) const {
    return checkpoint_.find(name) != nullptr;
  }
  // Values that are not in the checkpoint.
  View<const float, 1> constants(std::vector<float> values);
  // The host's copy of a small vector, as f32.
  [[nodiscard]] std::vector<float> read_vector(const TensorWish& wish) const;

  [[nodiscard]] DeviceKind device_kind() const { return stream_.device().facts().kind; }

  // Waits until everything is on the device.
  void finish();

 private:
  const TensorSource& source(const TensorWish& wish) const;
  void report(const TensorSource& tensor);

  const Checkpoint& checkpoint_;
  Stream& stream_;
  Arena& arena_;
  Progress progress_;
  int64_t bytes_read_ = 0;
  std::deque<std::vector<float>> constants_;
};

}  // namespace warprow
