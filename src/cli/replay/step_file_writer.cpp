// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/step_file_writer.h"

#include "base/math.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

tl::unexpected<Error> cannot(const char* what, const std::string& path) {
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("cannot {} '{}': {}", what, path, std::generic_category().message(errno)));
}

// A server that is started again after a crash must not overwrite the recording of it.
Result<void> make_room(const std::string& path) {
  const Result<StepFile> old = StepFile::open(path);
  if (!old && old.error().code == ErrorCode::kNotFound) {
    return {};
  }
  if (!old) {
    return tl::unexpected(old.error());
  }
  if (std::rename(path.c_str(), (path + ".old").c_str()) != 0) {
    return cannot("rename", path);
  }
  return {};
}

bool write_all(int fd, std::span<const uint8_t> bytes, size_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

Result<StepFileWriter> StepFileWriter::create(const std::string& path,
                                              int64_t max_bytes,
                                              const std::string& description) {
  if (Result<void> room = make_room(path); !room) {
    return tl::unexpected(room.error());
  }
  constexpr mode_t kOwnerOnly = 0600;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly);
  if (fd < 0) {
    return cannot("make", path);
  }
  const size_t begin = ring_offset(description.size());
  StepFileWriter writer(fd, begin, static_cast<size_t>(max_bytes) - begin);
  StepFileHead head;
  head.description_bytes = static_cast<uint32_t>(description.size());
  head.ring_bytes = writer.ring_bytes_;
  const std::span text(reinterpret_cast<const uint8_t*>(description.data()), description.size());
  head.checksum = record_checksum(text);
  const std::span head_bytes(reinterpret_cast<const uint8_t*>(&head), sizeof(head));
  if (::ftruncate(fd, static_cast<off_t>(max_bytes)) != 0 || !write_all(fd, text, sizeof(head)) ||
      !write_all(fd, head_bytes, 0)) {
    return cannot("write", path);
  }
  return writer;
}

StepFileWriter::StepFileWriter(StepFileWriter&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      ring_begin_(other.ring_begin_),
      ring_bytes_(other.ring_bytes_),
      at_(other.at_),
      record_(std::move(other.record_)) {}

StepFileWriter::~StepFileWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool StepFileWriter::append(StepMessage message,
                            uint64_t number,
                            std::span<const uint8_t> bytes,
                            std::span<const IdsHash> hashes) {
  RecordHead head;
  head.message = message;
  head.number = number;
  head.message_bytes = static_cast<uint32_t>(bytes.size());
  head.num_hashes = static_cast<uint32_t>(hashes.size());
  record_.resize(sizeof(head) + bytes.size() + hashes.size_bytes());
  std::memcpy(record_.data(), &head, sizeof(head));
  if (!bytes.empty()) {
    std::memcpy(record_.data() + sizeof(head), bytes.data(), bytes.size());
  }
  if (!hashes.empty()) {
    std::memcpy(record_.data() + sizeof(head) + bytes.size(), hashes.data(), hashes.size_bytes());
  }
  head.checksum = record_checksum(record_);
  std::memcpy(record_.data(), &head, sizeof(head));

  const size_t length = round_up(record_.size(), kRecordAlign);
  if (length > ring_bytes_) {
    return false;
  }
  if (length > ring_bytes_ - at_) {
    // No record of an earlier round stays behind the last one of this round.
    if (!write_all(fd_, std::vector<uint8_t>(ring_bytes_ - at_), ring_begin_ + at_)) {
      return false;
    }
    at_ = 0;
  }
  if (!write_all(fd_, record_, ring_begin_ + at_)) {
    return false;
  }
  at_ += length;
  return true;
}

}  // namespace warprow
