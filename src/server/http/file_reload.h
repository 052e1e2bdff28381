// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace warprow {

// Files that belong together and are read again when one of them changes: a certificate and its key.
//
// A change is a file's identity, size or times; links are followed, so one that is turned to another file counts. The files
// are read once two looks in turn have found the same, so that those which are written one after the other are read
// together. What cannot be used is logged, and tried again when something has changed.
//
// Thread: one.
class FileReload {
 public:
  using Read = std::function<Result<void>()>;
  // what: the subject of the log's lines, "the certificate". read: on an error what it read before must stay.
  FileReload(std::string what, std::vector<std::string> paths, Read read);

  // From time to time.
  void look();
  // At once, changed or not.
  void read_now();

 private:
  using Stamp = std::array<int64_t, 7>;
  [[nodiscard]] std::vector<Stamp> stamps() const;

  std::string what_;
  std::vector<std::string> paths_;
  Read read_;
  std::vector<Stamp> last_seen_;
  std::vector<Stamp> last_read_;
};

}  // namespace warprow
