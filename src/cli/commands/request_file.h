// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace warprow {

// Functions for files with one request per line, which generate and run-batch read.

// Whether a line is blank and so has no request.
bool is_blank(std::string_view line);

// Opens the file. kNotFound with the flag's name.
Result<std::ifstream> open_requests(const char* flag, const std::string& path);

// The number of requests in the file; 0 if it is not a regular file and so can be read only once.
int64_t count_requests(const std::string& path);

}  // namespace warprow
