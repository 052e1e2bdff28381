// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A key that a header can carry: visible ASCII characters, one at least. kInvalidArgument with the flag.
Result<void> check_key(const char* flag, const std::string& key);

// What --api-key-file names: a key a line; empty lines and those that begin with # are none.
struct KeyFile {
  std::string path;
  std::vector<std::string> keys;  // one at least
};
// kNotFound, or kInvalidArgument with the path and what is wrong.
Result<KeyFile> read_key_file(const std::string& path);

// The keys that open the API.
//
// Thread: any.
class ApiKeys {
 public:
  // fixed: those of --api-key. Neither: none is needed. What is no regular file, a pipe for instance, can be
  // read only once, so its keys stay.
  ApiKeys(std::vector<std::string> fixed, std::vector<KeyFile> files);

  [[nodiscard]] bool empty() const { return fixed_.empty() && paths_.empty(); }
  // In a time that tells nothing of the keys.
  [[nodiscard]] bool has(std::string_view given) const;

  [[nodiscard]] const std::vector<std::string>& paths() const { return paths_; }
  // Takes the files' keys as they are now; all stay as they were if one cannot be read.
  [[nodiscard]] Result<void> read_again();

 private:
  std::vector<std::string> fixed_;
  std::vector<std::string> paths_;
  mutable std::mutex mutex_;
  std::vector<KeyFile> files_;  // of paths_; guarded by the mutex
};

}  // namespace warprow
