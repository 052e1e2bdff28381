// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// RFC 4648's standard alphabet, with padding.
[[nodiscard]] std::string to_base64(std::span<const std::byte> bytes);
// nullopt: another character, wrong padding, or a last digit with bits that belong to no byte.
[[nodiscard]] std::optional<std::vector<std::byte>> from_base64(std::string_view text);

}  // namespace warprow
