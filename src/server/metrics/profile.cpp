// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/profile.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace warprow {
namespace {

Result<void> check_dir(const std::string& dir) {
  return dir.empty() ? fail(ErrorCode::kUnsupported,
                            "the server was started without --profile-dir, where profiles go")
                     : Result<void>();
}

// Creates a file that was not there, for its owner alone.
Result<void> write_new(const std::string& path, std::string_view text) {
  const auto failed = [&path] {
    return fail(ErrorCode::kInternal, fmt::format("{}: {}", path, std::strerror(errno)));
  };
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    return failed();
  }
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      const Result<void> why = failed();
      close(file);
      unlink(path.c_str());
      return why;
    }
    text.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
  close(file);
  return {};
}

}  // namespace

Result<void> Profile::start() {
  return check_dir(dir_).map([this] {
    const std::scoped_lock lock(mutex_);
    since_ = EngineClock::now();
  });
}

Result<std::string> Profile::stop(const Engine& engine, const ServerWatch& watch) {
  if (Result<void> good = check_dir(dir_); !good) {
    return tl::unexpected(good.error());
  }
  const std::scoped_lock lock(mutex_);
  if (!since_) {
    return fail(ErrorCode::kInvalidArgument, "no profile was started");
  }
  const auto now =
      std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  std::string path = fmt::format("{}/warprow-{:%Y%m%d-%H%M%S}-{:03}.trace.json",
                                 dir_,
                                 fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                                 now.time_since_epoch().count() % 1000);
  return write_new(path, trace_json(engine, watch, *since_)).map([&] {
    since_.reset();
    return path;
  });
}

}  // namespace warprow
