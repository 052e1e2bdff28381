// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace warprow {

// A file with a request a line, which generate and run-batch read.

// A line that stands for no request.
bool is_blank(std::string_view line);

// kNotFound, with the flag that named it.
Result<std::ifstream> open_requests(const char* flag, const std::string& path);

// The requests in it; 0 for what is no regular file and can be read only once.
int64_t count_requests(const std::string& path);

}  // namespace warprow
