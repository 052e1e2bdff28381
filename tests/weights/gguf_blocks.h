// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/source_path.h"
#include "weights/tensor_type.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace warprow::test {

// One record of tests/weights/data/gguf_blocks.bin: blocks, and the bits of the values that Python's gguf.quants
// decodes. tools/gen/gguf_blocks.py writes and describes the file. Without it a test fails.
struct GgufBlocks {
  std::string format;
  std::vector<std::byte> blocks;
  std::vector<uint32_t> bits;
};

// Where a block of a quantised type that has one has its scale, an IEEE half.
inline size_t scale_place(TensorType type) {
  switch (type) {
    case TensorType::kQ6_K:
      return 208;
    case TensorType::kQ2_K:
      return 80;
    case TensorType::kQ3_K:
      return 108;
    default:
      return 0;
  }
}

inline std::vector<GgufBlocks> load_gguf_blocks() {
  std::ifstream in(source_path("tests/weights/data/gguf_blocks.bin"), std::ios::binary);
  const std::vector<char> file{std::istreambuf_iterator<char>(in), {}};
  if (file.empty()) {
    throw std::runtime_error("tests/weights/data/gguf_blocks.bin is missing or empty");
  }
  std::vector<GgufBlocks> records;
  size_t at = 0;
  const auto take = [&](void* to, size_t len) {
    std::memcpy(to, file.data() + at, len);
    at += len;
  };
  while (at < file.size()) {
    char name[9] = {};
    uint32_t elems = 0;
    uint32_t bytes = 0;
    take(name, 8);
    take(&elems, sizeof(elems));
    take(&bytes, sizeof(bytes));
    GgufBlocks record{name, std::vector<std::byte>(bytes), std::vector<uint32_t>(elems)};
    take(record.blocks.data(), bytes);
    take(record.bits.data(), elems * sizeof(uint32_t));
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace warprow::test
