// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/byte_writer.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

// A safetensors file with this header, valid or not, and these data.
inline Bytes safetensors_bytes(std::string_view header, const Bytes& data) {
  Bytes out;
  put(out, static_cast<uint64_t>(header.size()));
  put_chars(out, header);
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

// Builds a safetensors file in memory:
//   SafetensorsWriter w;
//   w.add_f32("model.norm.weight", {64}, values);   // shape: outermost first
//   dir.write("model.safetensors", w.bytes());
class SafetensorsWriter {
 public:
  // `data` holds the tensor's bytes in the layout of its dtype ("F32", "BF16", ...).
  SafetensorsWriter& add(const std::string& name,
                         std::string_view dtype,
                         const std::vector<int64_t>& shape,
                         const Bytes& data) {
    header_[name] = {{"dtype", dtype},
                     {"shape", shape},
                     {"data_offsets", {data_.size(), data_.size() + data.size()}}};
    data_.insert(data_.end(), data.begin(), data.end());
    return *this;
  }
  SafetensorsWriter& add_f32(const std::string& name,
                             const std::vector<int64_t>& shape,
                             std::span<const float> values) {
    return add(name, "F32", shape, f32_bytes(values));
  }

  [[nodiscard]] nlohmann::json& header() { return header_; }  // for tests that corrupt the file
  [[nodiscard]] Bytes bytes() const { return safetensors_bytes(header_.dump(), data_); }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  Bytes data_;
};

}  // namespace warprow::test
