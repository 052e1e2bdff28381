// SPDX-License-Identifier: Apache-2.0
#include "server/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace warprow {
namespace {

constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr int8_t kNoDigit = -1;

constexpr std::array<int8_t, 256> kValues = [] {
  std::array<int8_t, 256> values{};
  values.fill(kNoDigit);
  for (size_t i = 0; i < kBase64Digits.size(); ++i) {
    values[static_cast<uint8_t>(kBase64Digits[i])] = static_cast<int8_t>(i);
  }
  return values;
}();

}  // namespace

std::string to_base64(std::span<const std::byte> bytes) {
  std::string out;
  out.reserve(4 * (bytes.size() / 3 + 1));
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t b = 0; b < 3; ++b) {
      word = word << 8U | (b < count ? std::to_integer<uint32_t>(bytes[i + b]) : 0U);
    }
    for (size_t digit = 0; digit < 4; ++digit) {
      out += digit <= count ? kBase64Digits[word >> (18U - 6U * digit) & 63U] : '=';
    }
  }
  return out;
}

std::optional<std::vector<std::byte>> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) {
    return std::nullopt;
  }
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t word = 0;
  uint32_t num_bits = 0;
  for (const char c : text) {
    const int8_t value = kValues[static_cast<uint8_t>(c)];
    if (value == kNoDigit) {
      return std::nullopt;
    }
    word = (word << 6U | static_cast<uint32_t>(value)) & 0xfffU;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<std::byte>(word >> num_bits & 0xffU));
    }
  }
  if ((word & ((1U << num_bits) - 1)) != 0) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace warprow
