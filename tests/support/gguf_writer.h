// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/gguf_types.h"
#include "tests/support/byte_writer.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace warprow::test {

template <typename T>
constexpr GgufValueType gguf_type_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return GgufValueType::kBool;
  } else if constexpr (std::is_same_v<T, float>) {
    return GgufValueType::kF32;
  } else if constexpr (std::is_same_v<T, double>) {
    return GgufValueType::kF64;
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    return GgufValueType::kString;
  } else {
    constexpr bool kSigned = std::is_signed_v<T>;
    switch (sizeof(T)) {
      case 1:
        return kSigned ? GgufValueType::kI8 : GgufValueType::kU8;
      case 2:
        return kSigned ? GgufValueType::kI16 : GgufValueType::kU16;
      case 4:
        return kSigned ? GgufValueType::kI32 : GgufValueType::kU32;
      default:
        return kSigned ? GgufValueType::kI64 : GgufValueType::kU64;
    }
  }
}

// Builds a GGUF file in memory. The C++ type of a value decides its type in the file:
//   GgufWriter w;
//   w.add("general.architecture", "llama").add("llama.block_count", uint32_t{2});
//   w.add_array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
//   w.add_f32("token_embd.weight", {8, 2}, values);   // ne: innermost first
//   dir.write("tiny.gguf", w.bytes());   // a TempDir
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3, uint32_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  template <typename T>
  GgufWriter& add(std::string_view key, const T& value) {
    put_string(values_, key);
    put(values_, gguf_type_of<T>());
    put_value(value);
    ++num_values_;
    return *this;
  }

  template <typename T>
  GgufWriter& add_array(std::string_view key, const std::vector<T>& values) {
    put_string(values_, key);
    put(values_, GgufValueType::kArray);
    put(values_, gguf_type_of<T>());
    put(values_, static_cast<uint64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      put_value(static_cast<T>(values[i]));  // the cast unwraps vector<bool>'s proxy
    }
    ++num_values_;
    return *this;
  }

  // `data` holds the tensor's bytes in the layout of its type.
  GgufWriter& add_tensor(std::string_view name,
                         GgmlType type,
                         const std::vector<uint64_t>& ne,
                         const Bytes& data) {
    put_string(infos_, name);
    put(infos_, static_cast<uint32_t>(ne.size()));
    for (const uint64_t n : ne) {
      put(infos_, n);
    }
    put(infos_, type);
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    put(infos_, static_cast<uint64_t>(data_.size()));
    data_.insert(data_.end(), data.begin(), data.end());
    ++num_tensors_;
    return *this;
  }
  GgufWriter& add_f32(std::string_view name,
                      const std::vector<uint64_t>& ne,
                      std::span<const float> values) {
    return add_tensor(name, GgmlType::kF32, ne, f32_bytes(values));
  }
  GgufWriter& add_f16(std::string_view name,
                      const std::vector<uint64_t>& ne,
                      std::span<const float> values) {
    return add_tensor(name, GgmlType::kF16, ne, f16_bytes(values));
  }
  GgufWriter& add_q8_0(std::string_view name,
                       const std::vector<uint64_t>& ne,
                       std::span<const float> values) {
    return add_tensor(name, GgmlType::kQ8_0, ne, q8_0_bytes(values));
  }

  [[nodiscard]] Bytes bytes() const {
    Bytes out;
    put_chars(out, "GGUF");
    put(out, version_);
    put(out, num_tensors_);
    put(out, num_values_);
    out.insert(out.end(), values_.begin(), values_.end());
    out.insert(out.end(), infos_.begin(), infos_.end());
    if (num_tensors_ > 0) {
      out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
    }
    out.insert(out.end(), data_.begin(), data_.end());
    return out;
  }

 private:
  static void put_string(Bytes& out, std::string_view text) {
    put(out, static_cast<uint64_t>(text.size()));
    put_chars(out, text);
  }
  template <typename T>
  void put_value(const T& value) {
    if constexpr (gguf_type_of<T>() == GgufValueType::kString) {
      put_string(values_, value);
    } else {
      put(values_, value);
    }
  }

  uint32_t version_;
  uint64_t alignment_;
  uint64_t num_values_ = 0;
  uint64_t num_tensors_ = 0;
  Bytes values_;
  Bytes infos_;
  Bytes data_;
};

}  // namespace warprow::test
