// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace warprow::test {

// The path of a file of this checkout: source_path("tests/golden/tiny").
std::string source_path(std::string_view file);

}  // namespace warprow::test
