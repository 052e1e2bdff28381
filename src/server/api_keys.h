// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// Checks that a header can carry the key: at least one character, all of them visible ASCII. kInvalidArgument names
// the flag.
Result<void> check_key(const char* flag, const std::string& key);

// The token behind the scheme "Bearer" of an Authorization header, whose case does not count (RFC 9110). Empty if the
// scheme is missing.
std::string_view bearer_token(std::string_view authorization);

// A file of --api-key-file: one key per line. Empty lines and lines that begin with # are skipped.
struct KeyFile {
  std::string path;
  std::vector<std::string> keys;  // one at least
};
// Errors: kNotFound, or kInvalidArgument with the path and the cause.
Result<KeyFile> read_key_file(const std::string& path);

// The API keys that the server accepts.
//
// Thread: any.
class ApiKeys {
 public:
  // fixed: the keys of --api-key. Without fixed keys and files no key is needed. The keys of a file that is not
  // regular, such as a pipe, never change: such a file can be read only once.
  ApiKeys(std::vector<std::string> fixed, std::vector<KeyFile> files);

  [[nodiscard]] bool empty() const { return fixed_.empty() && paths_.empty(); }
  // Takes the same time whether a key matches or not.
  [[nodiscard]] bool has(std::string_view given) const;

  [[nodiscard]] const std::vector<std::string>& paths() const { return paths_; }
  // Reads the key files again. If one cannot be read, all keys stay as they were.
  [[nodiscard]] Result<void> read_again();

 private:
  std::vector<std::string> fixed_;
  std::vector<std::string> paths_;
  mutable std::mutex mutex_;
  std::vector<KeyFile> files_;  // the contents of paths_; under mutex_
};

}  // namespace warprow
