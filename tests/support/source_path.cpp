// SPDX-License-Identifier: Apache-2.0
#include "tests/support/source_path.h"

namespace warprow::test {

std::string source_path(std::string_view file) {
  return std::string(WARPROW_SOURCE_DIR "/").append(file);
}

}  // namespace warprow::test
