// SPDX-License-Identifier: Apache-2.0
#include "files/gguf_parser.h"

#include "files/printable.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMaxDims = 4;
// The fewest bytes that an entry takes in the file, so that an impossible count is refused before anything is read.
constexpr uint64_t kMinValueBytes = 8 + 4 + 1;       // empty key, type, one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;  // empty name, no dimension, type, offset

}  // namespace

template <typename... Args>
tl::unexpected<Error> GgufParser::corrupt(const char* format, const Args&... args) const {
  return fail(ErrorCode::kCorrupt,
              fmt::format("'{}': {}", file_.name_, fmt::format(fmt::runtime(format), args...)));
}

tl::unexpected<Error> GgufParser::ends_in(std::string_view field) const {
  return corrupt("the file ends early: {} runs past its {} bytes", field, file_.bytes_.size());
}

template <typename T>
bool GgufParser::read(T& value) {
  std::span<const std::byte> bytes;
  if (!take(sizeof(T), bytes)) {
    return false;
  }
  std::memcpy(&value, bytes.data(), sizeof(T));
  return true;
}

bool GgufParser::take(uint64_t len, std::span<const std::byte>& bytes) {
  if (len > remaining()) {
    return false;
  }
  bytes = file_.bytes_.subspan(at_, len);
  at_ += len;
  return true;
}

bool GgufParser::read_string(std::string_view& value) {
  uint64_t length = 0;
  std::span<const std::byte> bytes;
  if (!read(length) || !take(length, bytes)) {
    return false;
  }
  value = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  return true;
}

Result<void> GgufParser::run() {
  if (Result<void> done = read_header(); !done) {
    return done;
  }
  // The tables grow as entries are parsed: a wrong count alone allocates nothing.
  for (uint64_t i = 0; i < num_values_; ++i) {
    if (Result<void> done = read_key_value(); !done) {
      return done;
    }
  }
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    if (Result<void> done = read_tensor_info(); !done) {
      return done;
    }
  }
  if (Result<void> done = place_tensors(); !done) {
    return done;
  }
  return check_apart();
}

Result<void> GgufParser::read_header() {
  uint32_t magic = 0;
  if (!read(magic) || magic != kMagic) {
    return corrupt("not a GGUF file (it does not start with the letters GGUF)");
  }
  uint32_t version = 0;
  if (!read(version)) {
    return ends_in("the version");
  }
  if (version != 2 && version != 3) {
    const bool big_endian = version != 0 && (version & 0xffffU) == 0;
    return fail(ErrorCode::kUnsupported,
                big_endian
                    ? fmt::format("'{}': a big-endian GGUF file; only little-endian ones are read",
                                  file_.name_)
                    : fmt::format("'{}': GGUF version {} is not supported (versions 2 and 3 are)",
                                  file_.name_,
                                  version));
  }
  if (!read(num_tensors_) || !read(num_values_)) {
    return ends_in("the header");
  }
  if (num_values_ > remaining() / kMinValueBytes) {
    return ends_in(fmt::format("the table of {} metadata values", num_values_));
  }
  if (num_tensors_ > remaining() / kMinTensorBytes) {
    return ends_in(fmt::format("the table of {} tensors", num_tensors_));
  }
  return {};
}

Result<void> GgufParser::read_key_value() {
  std::string_view key;
  GgufValue value;
  if (!read_string(key)) {
    return ends_in(fmt::format("metadata key {} of {}", file_.keys_.size() + 1, num_values_));
  }
  if (!read(value.type)) {
    return ends_in("the type of metadata key " + printable(key));
  }
  value.element = value.type;
  if (Result<void> done = read_value(key, value); !done) {
    return done;
  }
  if (!file_.values_.emplace(key, value).second) {
    return corrupt("metadata key {} occurs twice", printable(key));
  }
  file_.keys_.push_back(key);
  return {};
}

Result<void> GgufParser::read_value(std::string_view key, GgufValue& value) {
  if (value.type == GgufValueType::kArray) {
    if (Result<void> done = read_array(key, value); !done) {
      return done;
    }
  } else if (value.type == GgufValueType::kString) {
    std::string_view text;
    if (!read_string(text)) {
      return ends_in("metadata key " + printable(key));
    }
    value.bytes = std::as_bytes(std::span(text));
  } else {
    const int size = gguf_value_bytes(value.type);
    if (size == 0) {
      return corrupt("metadata key {} has the unknown type {}",
                     printable(key),
                     static_cast<uint32_t>(value.type));
    }
    if (!take(static_cast<uint64_t>(size), value.bytes)) {
      return ends_in("metadata key " + printable(key));
    }
  }
  const bool bad_bool = value.element == GgufValueType::kBool &&
                        std::any_of(value.bytes.begin(), value.bytes.end(), [](std::byte b) {
                          return b > std::byte{1};
                        });
  if (bad_bool) {
    return corrupt("metadata key {} holds a bool that is neither 0 nor 1", printable(key));
  }
  return {};
}

Result<void> GgufParser::read_array(std::string_view key, GgufValue& value) {
  if (!read(value.element) || !read(value.count)) {
    return ends_in("metadata key " + printable(key));
  }
  const std::string what =
      fmt::format("metadata key {}, an array of {} values,", printable(key), value.count);
  if (value.element == GgufValueType::kString) {
    const uint64_t begin = at_;
    std::string_view text;
    for (uint64_t i = 0; i < value.count; ++i) {
      if (!read_string(text)) {
        return ends_in(what);
      }
    }
    value.bytes = file_.bytes_.subspan(begin, at_ - begin);
    return {};
  }
  if (value.element == GgufValueType::kArray) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("'{}': metadata key {} is an array of arrays", file_.name_, printable(key)));
  }
  const auto size = static_cast<uint64_t>(gguf_value_bytes(value.element));
  if (size == 0) {
    return corrupt("metadata key {} is an array of the unknown type {}",
                   printable(key),
                   static_cast<uint32_t>(value.element));
  }
  if (value.count > remaining() / size || !take(value.count * size, value.bytes)) {
    return ends_in(what);
  }
  return {};
}

Result<void> GgufParser::read_tensor_info() {
  GgufTensor tensor;
  if (!read_string(tensor.name)) {
    return ends_in(
        fmt::format("the name of tensor {} of {}", file_.tensors_.size() + 1, num_tensors_));
  }
  if (Result<void> done = read_dims(tensor); !done) {
    return done;
  }
  if (!read(tensor.type) || !read(tensor.offset)) {
    return ends_in("the entry of tensor " + printable(tensor.name));
  }
  const GgmlTypeTraits* traits = ggml_type_traits(tensor.type);
  if (traits == nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("'{}': tensor {} has the unknown type {}",
                            file_.name_,
                            printable(tensor.name),
                            static_cast<uint32_t>(tensor.type)));
  }
  if (tensor.ne[0] % traits->block_elems != 0) {
    return corrupt("tensor {} has rows of {} elements, not a multiple of {} as its type {} needs",
                   printable(tensor.name),
                   tensor.ne[0],
                   traits->block_elems,
                   traits->name);
  }
  uint64_t blocks = static_cast<uint64_t>(tensor.ne[0] / traits->block_elems);
  for (size_t i = 1; i < tensor.ne.size(); ++i) {
    blocks *=
        static_cast<uint64_t>(tensor.ne[i]);  // at most the elements, which read_dims has bounded
  }
  const auto block_bytes = static_cast<uint64_t>(traits->block_bytes);
  if (blocks > file_.bytes_.size() / block_bytes) {
    return ends_in(fmt::format("the data of tensor {} ({} blocks of {} bytes)",
                               printable(tensor.name),
                               blocks,
                               block_bytes));
  }
  tensor.bytes = blocks * block_bytes;
  if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
    return corrupt("tensor {} occurs twice", printable(tensor.name));
  }
  file_.tensors_.push_back(tensor);
  return {};
}

Result<void> GgufParser::read_dims(GgufTensor& tensor) {
  uint32_t n_dims = 0;
  if (!read(n_dims)) {
    return ends_in("the entry of tensor " + printable(tensor.name));
  }
  if (n_dims > kMaxDims) {
    return corrupt(
        "tensor {} has {} dimensions, more than {}", printable(tensor.name), n_dims, kMaxDims);
  }
  tensor.n_dims = static_cast<int>(n_dims);
  int64_t elems = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    uint64_t dim = 0;
    if (!read(dim)) {
      return ends_in("the entry of tensor " + printable(tensor.name));
    }
    if (dim == 0 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / elems)) {
      return corrupt("tensor {} has the impossible dimension {}", printable(tensor.name), dim);
    }
    tensor.ne[i] = static_cast<int64_t>(dim);
    elems *= tensor.ne[i];
  }
  return {};
}

// Offsets in the file are relative to the start of the data: the end of the headers, rounded up.
Result<void> GgufParser::place_tensors() {
  Result<uint32_t> alignment = file_.get_or<uint32_t>("general.alignment", kDefaultAlignment);
  if (!alignment) {
    return tl::unexpected(std::move(alignment).error());
  }
  if (!std::has_single_bit(*alignment)) {
    return corrupt("general.alignment is {}, not a power of two", *alignment);
  }
  const uint64_t mask = *alignment - 1;
  const uint64_t data_begin = (at_ + mask) & ~mask;
  const uint64_t size = file_.bytes_.size();
  for (GgufTensor& tensor : file_.tensors_) {
    if ((tensor.offset & mask) != 0) {
      return corrupt("tensor {} has the offset {}, not a multiple of {}",
                     printable(tensor.name),
                     tensor.offset,
                     *alignment);
    }
    if (data_begin > size || tensor.offset > size - data_begin ||
        tensor.bytes > size - data_begin - tensor.offset) {
      return ends_in(fmt::format("the data of tensor {} ({} bytes at {} + {})",
                                 printable(tensor.name),
                                 tensor.bytes,
                                 data_begin,
                                 tensor.offset));
    }
    tensor.offset += data_begin;
  }
  return {};
}

Result<void> GgufParser::check_apart() const {
  std::vector<const GgufTensor*> order;
  order.reserve(file_.tensors_.size());
  for (const GgufTensor& tensor : file_.tensors_) {
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->offset < b->offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return corrupt(
          "tensors {} and {} overlap", printable(order[i - 1]->name), printable(order[i]->name));
    }
  }
  return {};
}

}  // namespace warprow
