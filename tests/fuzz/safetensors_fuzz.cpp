// SPDX-License-Identifier: Apache-2.0 libFuzzer target: whatever the bytes, the safetensors reader
// answers with a file whose tensors tile them, or an Error.
#include "files/safetensors.h"

#include "base/check.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = warprow::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (file) {
    for (const warprow::SafetensorsTensor& tensor : file->tensors()) {
      WR_CHECK(file->find(tensor.name) == &tensor);
      WR_CHECK_EQ(file->tensor_bytes(tensor).size(), tensor.bytes);
      uint64_t elems = 1;
      for (const int64_t dim : tensor.shape) {
        elems *= static_cast<uint64_t>(dim);
      }
      const int bits = warprow::safetensors_dtype_traits(tensor.dtype).bits;
      WR_CHECK_EQ(elems * static_cast<uint64_t>(bits), tensor.bytes * 8);
    }
  }
  return 0;
}
