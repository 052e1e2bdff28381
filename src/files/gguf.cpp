// SPDX-License-Identifier: Apache-2.0
#include "files/gguf.h"

#include "files/gguf_parser.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are read as they stand in the file");

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

bool is_string(GgufValueType type) { return type == GgufValueType::kString; }

// An integer or bool that an int64 can hold.
std::optional<int64_t> load_int(GgufValueType type, const std::byte* at) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kBool:
      return load<uint8_t>(at);
    case GgufValueType::kI8:
      return load<int8_t>(at);
    case GgufValueType::kU16:
      return load<uint16_t>(at);
    case GgufValueType::kI16:
      return load<int16_t>(at);
    case GgufValueType::kU32:
      return load<uint32_t>(at);
    case GgufValueType::kI32:
      return load<int32_t>(at);
    case GgufValueType::kI64:
      return load<int64_t>(at);
    case GgufValueType::kU64: {
      const auto value = load<uint64_t>(at);
      if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return static_cast<int64_t>(value);
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<float> load_float(GgufValueType type, const std::byte* at) {
  if (type == GgufValueType::kF32) {
    return load<float>(at);
  }
  if (type == GgufValueType::kF64) {
    const auto value = load<double>(at);
    if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
      return std::nullopt;
    }
    return static_cast<float>(value);
  }
  if (type == GgufValueType::kBool) {
    return std::nullopt;
  }
  const auto value = load_int(type, at);
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

std::string_view chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One value, or one element of an array, as a scalar T.
template <typename T>
std::optional<T> load_scalar(GgufValueType type, const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    return type == GgufValueType::kBool ? std::optional(load<uint8_t>(at) != 0) : std::nullopt;
  } else if constexpr (std::is_same_v<T, float>) {
    return load_float(type, at);
  } else {
    const auto value = load_int(type, at);
    return value && std::in_range<T>(*value) ? std::optional(static_cast<T>(*value)) : std::nullopt;
  }
}

template <typename T>
std::optional<T> convert_scalar(const GgufValue& value) {
  if (value.type == GgufValueType::kArray || is_string(value.type)) {
    return std::nullopt;
  }
  return load_scalar<T>(value.type, value.bytes.data());
}

template <typename T>
std::optional<std::vector<T>> convert_array(const GgufValue& value) {
  if (value.type != GgufValueType::kArray || is_string(value.element)) {
    return std::nullopt;
  }
  const auto stride = static_cast<size_t>(gguf_value_bytes(value.element));
  std::vector<T> out;
  out.reserve(value.count);
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto element = load_scalar<T>(value.element, value.bytes.data() + i * stride);
    if (!element) {
      return std::nullopt;
    }
    out.push_back(*element);
  }
  return out;
}

std::optional<std::vector<std::string_view>> convert_strings(const GgufValue& value) {
  if (value.type != GgufValueType::kArray || !is_string(value.element)) {
    return std::nullopt;
  }
  std::vector<std::string_view> out;
  out.reserve(value.count);
  // (u64 length, characters) each; the parser has checked the lengths.
  std::span<const std::byte> rest = value.bytes;
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto length = static_cast<size_t>(load<uint64_t>(rest.data()));
    out.push_back(chars(rest.subspan(sizeof(uint64_t), length)));
    rest = rest.subspan(sizeof(uint64_t) + length);
  }
  return out;
}

template <typename T>
std::optional<T> convert(const GgufValue& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return is_string(value.type) ? std::optional(chars(value.bytes)) : std::nullopt;
  } else if constexpr (std::is_same_v<T, std::vector<std::string_view>>) {
    return convert_strings(value);
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>> ||
                       std::is_same_v<T, std::vector<float>>) {
    return convert_array<typename T::value_type>(value);
  } else {
    return convert_scalar<T>(value);
  }
}

template <typename T>
const char* wanted() {
  if constexpr (std::is_same_v<T, bool>) {
    return "a bool";
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return "a 32-bit integer in range";
  } else if constexpr (std::is_same_v<T, uint32_t>) {
    return "an unsigned 32-bit integer in range";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "a 64-bit integer in range";
  } else if constexpr (std::is_same_v<T, float>) {
    return "a number";
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    return "a string";
  } else if constexpr (std::is_same_v<T, std::vector<std::string_view>>) {
    return "an array of strings";
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return "an array of integers";
  } else {
    return "an array of numbers";
  }
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::string& path) {
  Result<MappedFile> mapping = MappedFile::open(path);
  if (!mapping) {
    return tl::unexpected(std::move(mapping).error());
  }
  Result<GgufFile> file = parse(mapping->bytes(), path);
  if (file) {
    file->mapping_ = std::move(*mapping);
  }
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  file.bytes_ = bytes;
  if (Result<void> done = GgufParser(file).run(); !done) {
    return tl::unexpected(std::move(done).error());
  }
  return file;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

std::span<const std::byte> GgufFile::tensor_bytes(const GgufTensor& tensor) const {
  return bytes_.subspan(tensor.offset, tensor.bytes);
}

const GgufValue* GgufFile::find_value(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

template <typename T>
std::optional<T> GgufFile::get(std::string_view key) const {
  const GgufValue* value = find_value(key);
  return value == nullptr ? std::nullopt : convert<T>(*value);
}

template <typename T>
Result<T> GgufFile::require(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) {
    return fail(ErrorCode::kCorrupt, fmt::format("'{}': metadata key '{}' is missing", name_, key));
  }
  if (auto converted = convert<T>(*value)) {
    return *std::move(converted);
  }
  const bool array = value->type == GgufValueType::kArray;
  return fail(ErrorCode::kCorrupt,
              fmt::format("'{}': metadata key '{}' of type {}{} is not {}",
                          name_,
                          key,
                          array ? "array of " : "",
                          gguf_value_type_name(value->element),
                          wanted<T>()));
}

template <typename T>
Result<T> GgufFile::get_or(std::string_view key, T fallback) const {
  if (!has(key)) {
    return fallback;
  }
  return require<T>(key);
}

#define WR_INSTANTIATE_GETTERS(T)                                     \
  template std::optional<T> GgufFile::get<T>(std::string_view) const; \
  template Result<T> GgufFile::require<T>(std::string_view) const;    \
  template Result<T> GgufFile::get_or<T>(std::string_view, T) const;
WR_INSTANTIATE_GETTERS(bool)
WR_INSTANTIATE_GETTERS(int32_t)
WR_INSTANTIATE_GETTERS(uint32_t)
WR_INSTANTIATE_GETTERS(int64_t)
WR_INSTANTIATE_GETTERS(float)
WR_INSTANTIATE_GETTERS(std::string_view)
WR_INSTANTIATE_GETTERS(std::vector<std::string_view>)
WR_INSTANTIATE_GETTERS(std::vector<int64_t>)
WR_INSTANTIATE_GETTERS(std::vector<float>)
#undef WR_INSTANTIATE_GETTERS

void GgufFile::drop_pages(uint64_t offset, uint64_t len) const {
  if (mapping_) {
    mapping_->advise_drop(offset, len);
  }
}

}  // namespace warprow
