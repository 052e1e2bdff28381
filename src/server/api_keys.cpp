// SPDX-License-Identifier: Apache-2.0
#include "server/api_keys.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Constant time: the duration does not depend on the position of the first difference.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i % std::max<size_t>(secret.size(), 1)]);
  }
  return difference == 0;
}

}  // namespace

std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const bool is_bearer =
      authorization.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char ours, char given) {
        return ours == (given >= 'A' && given <= 'Z' ? given - 'A' + 'a' : given);
      });
  if (!is_bearer) {
    return {};
  }
  const std::string_view rest = authorization.substr(kScheme.size());
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

// If no header can carry a key, no client can use it. An empty key would protect nothing.
Result<void> check_key(const char* flag, const std::string& key) {
  const bool is_plain =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (key.empty() || !is_plain) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--{}: {}",
                    flag,
                    key.empty() ? "the key is empty"
                                : "a key must consist of visible ASCII characters without spaces"));
  }
  return {};
}

Result<KeyFile> read_key_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return fail(ErrorCode::kNotFound, fmt::format("--api-key-file: cannot read {}", path));
  }
  KeyFile out{.path = path, .keys = {}};
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (!line.empty() && line.front() != '#') {
      if (Result<void> good = check_key("api-key-file", line); !good) {
        return tl::unexpected(good.error());
      }
      out.keys.push_back(line);
    }
  }
  if (out.keys.empty()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("--api-key-file: no key in {}", path));
  }
  return out;
}

ApiKeys::ApiKeys(std::vector<std::string> fixed, std::vector<KeyFile> files)
    : fixed_(std::move(fixed)) {
  for (KeyFile& file : files) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file.path, ignored)) {
      paths_.push_back(file.path);
      files_.push_back(std::move(file));
    } else {
      fixed_.insert(fixed_.end(), file.keys.begin(), file.keys.end());
    }
  }
}

bool ApiKeys::has(std::string_view given) const {
  bool found = false;  // compares all keys, so that the time does not depend on the match
  const auto compare = [&](const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      found = same_secret(given, key) || found;
    }
  };
  compare(fixed_);
  const std::scoped_lock lock(mutex_);
  for (const KeyFile& file : files_) {
    compare(file.keys);
  }
  return found;
}

Result<void> ApiKeys::read_again() {
  std::vector<KeyFile> files;
  for (const std::string& path : paths_) {
    Result<KeyFile> file = read_key_file(path);
    if (!file) {
      return tl::unexpected(file.error());
    }
    files.push_back(*std::move(file));
  }
  const std::scoped_lock lock(mutex_);
  files_ = std::move(files);
  return {};
}

}  // namespace warprow
