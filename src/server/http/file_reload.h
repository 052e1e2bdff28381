// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace warprow {

// Files that belong together and are reloaded when one of them changes, such as a certificate and its key.
//
// A file has changed if its identity, size or times differ. Links are followed, so a link to another file is a change.
// The files are read after two successive looks have found the same state. So files that are written one after the
// other are read together. An error is logged, and the files are read again after the next change.
//
// Thread: one.
class FileReload {
 public:
  using Read = std::function<Result<void>()>;
  // what: the subject of the log lines, such as "the certificate". read: on an error it must keep the previous
  // contents.
  FileReload(std::string what, std::vector<std::string> paths, Read read);

  // Checks for a change. Call it periodically.
  void look();
  // Reads the files now, changed or not.
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
