// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/request_file.h"

#include <filesystem>

#include <fmt/format.h>

namespace warprow {

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

Result<std::ifstream> open_requests(const char* flag, const std::string& path) {
  std::ifstream file(path);
  file.peek();  // opening a directory works, reading it does not
  if (!file.is_open() || file.bad()) {
    return fail(ErrorCode::kNotFound, fmt::format("{} {}: cannot read the file", flag, path));
  }
  file.clear();
  return file;
}

int64_t count_requests(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) {
    return 0;
  }
  std::ifstream file(path);
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    count += is_blank(line) ? 0 : 1;
  }
  return count;
}

}  // namespace warprow
