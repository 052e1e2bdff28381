// SPDX-License-Identifier: Apache-2.0
#include "server/http/file_reload.h"

#include "base/log.h"

#include <algorithm>
#include <iterator>
#include <sys/stat.h>
#include <utility>

namespace warprow {

FileReload::FileReload(std::string what, std::vector<std::string> paths, Read read)
    : what_(std::move(what)),
      paths_(std::move(paths)),
      read_(std::move(read)),
      last_seen_(stamps()),
      last_read_(last_seen_) {}

void FileReload::look() {
  const std::vector<Stamp> before = std::exchange(last_seen_, stamps());
  if (last_seen_ == before && last_seen_ != last_read_) {
    read_now();
  }
}

// Take the stamps first: the next looks then find a change that happens while the files are read.
void FileReload::read_now() {
  last_seen_ = stamps();
  last_read_ = last_seen_;
  if (const Result<void> done = read_(); done) {
    WR_LOG_INFO("{} was read again", what_);
  } else {
    WR_LOG_ERROR("{} was not replaced, the old one stays: {}", what_, done.error().message);
  }
}

// A missing file has an all-zero stamp.
std::vector<FileReload::Stamp> FileReload::stamps() const {
  std::vector<Stamp> out;
  std::transform(
      paths_.begin(), paths_.end(), std::back_inserter(out), [](const std::string& path) -> Stamp {
        struct stat status{};
        if (stat(path.c_str(), &status) != 0) {
          return {};
        }
        return {static_cast<int64_t>(status.st_dev),
                static_cast<int64_t>(status.st_ino),
                int64_t{status.st_size},
                int64_t{status.st_mtim.tv_sec},
                int64_t{status.st_mtim.tv_nsec},
                int64_t{status.st_ctim.tv_sec},
                int64_t{status.st_ctim.tv_nsec}};
      });
  return out;
}

}  // namespace warprow
