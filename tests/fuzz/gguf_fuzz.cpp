// SPDX-License-Identifier: Apache-2.0 libFuzzer target: whatever the bytes, the GGUF reader answers
// with a file whose tensors lie within them, or an Error.
#include "files/gguf.h"

#include "base/check.h"
#include "weights/dequantize.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace warprow {
namespace {

void read_metadata(const GgufFile& file) {
  for (const std::string_view key : file.keys()) {
    (void)file.get<bool>(key);
    (void)file.get<uint32_t>(key);
    (void)file.get<int64_t>(key);
    (void)file.get<float>(key);
    (void)file.get<std::string_view>(key);
    (void)file.get<std::vector<std::string_view>>(key);
    (void)file.get<std::vector<int64_t>>(key);
    (void)file.require<std::vector<float>>(key);
  }
}

void read_tensors(const GgufFile& file) {
  constexpr int64_t kMaxCols = 4096;
  for (const GgufTensor& tensor : file.tensors()) {
    WR_CHECK(file.find_tensor(tensor.name) == &tensor);
    WR_CHECK_EQ(file.tensor_bytes(tensor).size(), tensor.bytes);
    const auto format = tensor_type_of(tensor.type);
    if (format && tensor.ne[0] <= kMaxCols) {
      std::vector<float> row(static_cast<size_t>(tensor.ne[0]));
      dequantize_row(*format, file.tensor_bytes(tensor).data(), row.data(), tensor.ne[0]);
    }
  }
}

}  // namespace
}  // namespace warprow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = warprow::GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (file) {
    warprow::read_metadata(*file);
    warprow::read_tensors(*file);
  }
  return 0;
}
