// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors.h"

#include "files/json_file.h"
#include "files/printable.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 16;

}  // namespace

// Fills a SafetensorsFile from its bytes. Internal to SafetensorsFile.
class SafetensorsParser {
 public:
  explicit SafetensorsParser(SafetensorsFile& file) : file_(file) {}
  Result<void> run();

 private:
  Result<json> read_header();
  Result<SafetensorsTensor> read_tensor(const std::string& name, const json& entry) const;
  Result<void> read_shape(const json& shape, SafetensorsTensor& tensor) const;
  Result<void> read_place(const json& offsets, SafetensorsTensor& tensor) const;
  Result<void> check_tiling() const;

  template <typename... Args>
  [[nodiscard]] tl::unexpected<Error> corrupt(const char* format, const Args&... args) const {
    return fail(ErrorCode::kCorrupt,
                fmt::format("'{}': {}", file_.name_, fmt::format(fmt::runtime(format), args...)));
  }

  SafetensorsFile& file_;
  uint64_t data_begin_ = 0;
  uint64_t data_bytes_ = 0;
};

Result<void> SafetensorsParser::run() {
  const Result<json> header = read_header();
  if (!header) {
    return tl::unexpected(header.error());
  }
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") {
      continue;
    }
    Result<SafetensorsTensor> tensor = read_tensor(name, entry);
    if (!tensor) {
      return tl::unexpected(std::move(tensor).error());
    }
    file_.tensors_.push_back(*std::move(tensor));
  }
  // An empty tensor has the same offset as its neighbour and must sort before it for the tiling check.
  std::sort(file_.tensors_.begin(), file_.tensors_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  for (size_t i = 0; i < file_.tensors_.size(); ++i) {
    file_.index_.emplace(file_.tensors_[i].name, i);
  }
  return check_tiling();
}

Result<json> SafetensorsParser::read_header() {
  const uint64_t size = file_.bytes_.size();
  uint64_t length = 0;
  if (size < kLengthBytes) {
    return corrupt("not a safetensors file: {} bytes are too few for a header", size);
  }
  std::memcpy(&length, file_.bytes_.data(), sizeof(length));
  if (length > kMaxHeaderBytes) {
    return corrupt("not a safetensors file: its header would have {} bytes (the limit is {})",
                   length,
                   kMaxHeaderBytes);
  }
  if (length > size - kLengthBytes) {
    return corrupt(
        "the file ends early: a header of {} bytes runs past its {} bytes", length, size);
  }
  data_begin_ = kLengthBytes + length;
  data_bytes_ = size - data_begin_;
  const std::string_view text(reinterpret_cast<const char*>(file_.bytes_.data()) + kLengthBytes,
                              length);
  if (!text.starts_with('{')) {
    return corrupt("not a safetensors file: its header is not a JSON object");
  }
  std::string repeated;
  Result<json> header = parse_json(text, file_.name_ + " (header)", &repeated);
  if (header && !repeated.empty()) {
    return corrupt("tensor {} occurs twice", printable(repeated));
  }
  return header;
}

Result<SafetensorsTensor> SafetensorsParser::read_tensor(const std::string& name,
                                                         const json& entry) const {
  SafetensorsTensor tensor;
  tensor.name = name;
  const bool complete = entry.is_object() && entry.contains("dtype") &&
                        entry["dtype"].is_string() && entry.contains("shape") &&
                        entry.contains("data_offsets");
  if (!complete) {
    return corrupt("tensor {} lacks a dtype, a shape or data_offsets", printable(name));
  }
  const auto& dtype_name = entry["dtype"].get_ref<const std::string&>();
  const auto dtype = safetensors_dtype_from_name(dtype_name);
  if (!dtype) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("'{}': tensor {} has the unknown dtype {}",
                            file_.name_,
                            printable(name),
                            printable(dtype_name)));
  }
  tensor.dtype = *dtype;
  if (Result<void> done = read_shape(entry["shape"], tensor); !done) {
    return tl::unexpected(std::move(done).error());
  }
  if (Result<void> done = read_place(entry["data_offsets"], tensor); !done) {
    return tl::unexpected(std::move(done).error());
  }
  return tensor;
}

Result<void> SafetensorsParser::read_shape(const json& shape, SafetensorsTensor& tensor) const {
  if (!shape.is_array() || shape.size() > kMaxDims) {
    return corrupt("tensor {}: its shape is not an array of up to {} numbers",
                   printable(tensor.name),
                   kMaxDims);
  }
  // Zero elements are allowed, so the limit applies to the product of the other dimensions.
  int64_t elems = 1;
  for (const json& dim : shape) {
    const bool natural = dim.is_number_unsigned();
    const uint64_t value = natural ? dim.get<uint64_t>() : 0;
    const auto limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 64 / elems);
    if (!natural || value > limit) {
      return corrupt("tensor {} has the impossible dimension {}",
                     printable(tensor.name),
                     printable(dim.dump()));
    }
    tensor.shape.push_back(static_cast<int64_t>(value));
    elems *= std::max<int64_t>(1, tensor.shape.back());
  }
  return {};
}

Result<void> SafetensorsParser::read_place(const json& offsets, SafetensorsTensor& tensor) const {
  const bool pair = offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
                    offsets[1].is_number_unsigned();
  if (!pair) {
    return corrupt("tensor {}: data_offsets are not two natural numbers", printable(tensor.name));
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end) {
    return corrupt(
        "tensor {}: data_offsets [{}, {}] run backwards", printable(tensor.name), begin, end);
  }
  if (end > data_bytes_) {
    return corrupt("the file ends early: tensor {} ends at {} of {} bytes of data",
                   printable(tensor.name),
                   end,
                   data_bytes_);
  }
  uint64_t bits = static_cast<uint64_t>(safetensors_dtype_traits(tensor.dtype).bits);
  for (const int64_t dim : tensor.shape) {
    bits *= static_cast<uint64_t>(dim);  // below 2^63, as read_shape has checked
  }
  if (bits % 8 != 0 || bits / 8 != end - begin) {
    return corrupt("tensor {} has {} bytes, its shape and dtype need {}",
                   printable(tensor.name),
                   end - begin,
                   bits / 8);
  }
  tensor.offset = data_begin_ + begin;
  tensor.bytes = end - begin;
  return {};
}

Result<void> SafetensorsParser::check_tiling() const {
  uint64_t at = data_begin_;
  for (const SafetensorsTensor& tensor : file_.tensors_) {
    if (tensor.offset != at) {
      return corrupt("tensor {} starts at {}, {} the end of the one before it, {}",
                     printable(tensor.name),
                     tensor.offset - data_begin_,
                     tensor.offset < at ? "before" : "after",
                     at - data_begin_);
    }
    at += tensor.bytes;
  }
  if (at != file_.bytes_.size()) {
    return corrupt("{} bytes follow the last tensor", file_.bytes_.size() - at);
  }
  return {};
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> mapping = MappedFile::open(path);
  if (!mapping) {
    return tl::unexpected(std::move(mapping).error());
  }
  Result<SafetensorsFile> file = parse(mapping->bytes(), path);
  if (file) {
    file->mapping_ = std::move(*mapping);
  }
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  SafetensorsFile file;
  file.name_ = std::move(name);
  file.bytes_ = bytes;
  if (Result<void> done = SafetensorsParser(file).run(); !done) {
    return tl::unexpected(std::move(done).error());
  }
  return file;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::span<const std::byte> SafetensorsFile::tensor_bytes(const SafetensorsTensor& tensor) const {
  return bytes_.subspan(tensor.offset, tensor.bytes);
}

void SafetensorsFile::drop_pages(uint64_t offset, uint64_t len) const {
  if (mapping_) {
    mapping_->advise_drop(offset, len);
  }
}

}  // namespace warprow
