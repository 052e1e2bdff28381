// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

// Two archives with one interface: `archive(a, b, c)` visits values in order, so that a message's fields are listed
// once (serialize.cpp) for both directions. Scalars go by memcpy, structs through a free function `visit(archive,
// value)`, vectors and strings as a u32 count and elements, optionals as a u8 and the value.
namespace warprow::wire {

// T& when the archive reads into it, else const T&.
template <typename Archive, typename T>
using Ref = std::conditional_t<Archive::kReading, T&, const T&>;

template <typename T>
inline constexpr bool kIsScalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// Appends to `bytes`, which have their final size when the writer ends: until then they grow by doubling, since growing
// for each scalar would take most of the time.
class Writer {
 public:
  static constexpr bool kReading = false;

  explicit Writer(std::vector<uint8_t>& bytes) : bytes_(bytes), end_(bytes.size()) {}
  ~Writer() { bytes_.resize(end_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  template <typename... Ts>
  void operator()(const Ts&... values) {
    (put(values), ...);
  }

 private:
  template <typename T>
  void put(const T& value) {
    if constexpr (kIsScalar<T>) {
      put_raw(&value, sizeof(T));
    } else {
      visit(*this, value);
    }
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    put(static_cast<uint32_t>(list.size()));
    if constexpr (kIsScalar<T>) {
      put_raw(list.data(), list.size() * sizeof(T));
    } else {
      for (const T& value : list) {
        put(value);
      }
    }
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    put_raw(text.data(), text.size());
  }
  template <typename T>
  void put(const std::optional<T>& value) {
    put(static_cast<uint8_t>(value.has_value()));
    if (value) {
      put(*value);
    }
  }
  void put_raw(const void* data, size_t num_bytes) {
    if (num_bytes > bytes_.size() - end_) {
      bytes_.resize(2 * (end_ + num_bytes));
    }
    if (num_bytes > 0) {
      std::memcpy(bytes_.data() + end_, data, num_bytes);
    }
    end_ += num_bytes;
  }

  std::vector<uint8_t>& bytes_;
  size_t end_;
};

// The fewest bytes that a struct takes. A list's count is checked against it before anything is reserved.
class Sizer {
 public:
  static constexpr bool kReading = false;

  template <typename... Ts>
  constexpr void operator()(const Ts&... values) {
    (add(values), ...);
  }
  [[nodiscard]] constexpr size_t num_bytes() const { return num_bytes_; }

 private:
  template <typename T>
  constexpr void add(const T& value) {
    if constexpr (kIsScalar<T>) {
      num_bytes_ += sizeof(T);
    } else {
      visit(*this, value);
    }
  }
  template <typename T>
  constexpr void add(const std::vector<T>& /*list*/) {
    num_bytes_ += sizeof(uint32_t);
  }
  constexpr void add(const std::string& /*text*/) { num_bytes_ += sizeof(uint32_t); }

  size_t num_bytes_ = 0;
};

// Invariant: once a read has failed, ok() stays false and all further reads do nothing.
class Reader {
 public:
  static constexpr bool kReading = true;

  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  template <typename... Ts>
  void operator()(Ts&... values) {
    (get(values), ...);
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] size_t num_left() const { return bytes_.size(); }

 private:
  template <typename T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      get_raw(&byte, 1);
      ok_ = ok_ && byte <= 1;
      value = byte == 1;
    } else if constexpr (kIsScalar<T>) {
      get_raw(&value, sizeof(T));
    } else {
      visit(*this, value);
    }
  }
  template <typename T>
  void get(std::vector<T>& list) {
    list.clear();
    uint32_t count = 0;
    get(count);
    if (!ok_ || count > bytes_.size() / wire_bytes<T>()) {
      ok_ = false;
      return;
    }
    list.resize(count);
    if constexpr (kIsScalar<T>) {
      get_raw(list.data(), count * sizeof(T));
    } else {
      for (T& value : list) {
        get(value);
      }
    }
  }
  void get(std::string& text) {
    text.clear();
    uint32_t count = 0;
    get(count);
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return;
    }
    text.resize(count);
    get_raw(text.data(), count);
  }
  template <typename T>
  void get(std::optional<T>& value) {
    value.reset();
    bool present = false;
    get(present);
    if (ok_ && present) {
      get(value.emplace());
    }
  }
  void get_raw(void* data, size_t num_bytes) {
    if (!ok_ || num_bytes > bytes_.size()) {
      ok_ = false;
      return;
    }
    if (num_bytes > 0) {
      std::memcpy(data, bytes_.data(), num_bytes);
      bytes_ = bytes_.subspan(num_bytes);
    }
  }
  template <typename T>
  static size_t wire_bytes() {
    if constexpr (kIsScalar<T>) {
      return sizeof(T);
    } else {
      Sizer sizer;
      visit(sizer, T{});
      return sizer.num_bytes();
    }
  }

  std::span<const uint8_t> bytes_;
  bool ok_ = true;
};

}  // namespace warprow::wire
