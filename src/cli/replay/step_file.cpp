// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/step_file.h"

#include "base/math.h"
#include "kv/block_hash.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr size_t kChecksumAt = offsetof(RecordHead, checksum);

// The record at the beginning of `bytes`, or one of length 0.
struct Found {
  size_t length = 0;
  StepFileRecord record;
};

bool begins_record(std::span<const uint8_t> bytes, RecordHead& head) {
  if (bytes.size() < sizeof(head)) {
    return false;
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  return head.magic == RecordHead{}.magic;
}

Found read_record(std::span<const uint8_t> bytes, const RecordHead& head) {
  const size_t hash_bytes = size_t{head.num_hashes} * sizeof(IdsHash);
  const size_t length = sizeof(head) + head.message_bytes + hash_bytes;
  if (length > bytes.size()) {
    return {};
  }
  std::vector<uint8_t> copy(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
  std::memset(copy.data() + kChecksumAt, 0, sizeof(head.checksum));
  if (record_checksum(copy) != head.checksum) {
    return {};
  }
  Found found{length, {head.message, head.number, bytes.subspan(sizeof(head), head.message_bytes)}};
  found.record.hashes.resize(head.num_hashes);
  if (hash_bytes > 0) {
    std::memcpy(
        found.record.hashes.data(), bytes.data() + sizeof(head) + head.message_bytes, hash_bytes);
  }
  return found;
}

}  // namespace

size_t ring_offset(size_t description_bytes) {
  return round_up(sizeof(StepFileHead) + description_bytes, kStepFileAlign);
}

uint64_t record_checksum(std::span<const uint8_t> bytes) {
  return sip_hash_128(std::as_bytes(bytes)).lo;
}

Result<StepFile> StepFile::open(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) {
    return tl::unexpected(mapped.error());
  }
  StepFile file(*std::move(mapped));
  if (Result<void> read = file.read(); !read) {
    return fail(read.error().code, fmt::format("'{}' {}", path, read.error().message));
  }
  return file;
}

Result<void> StepFile::read() {
  const std::span bytes(reinterpret_cast<const uint8_t*>(file_.bytes().data()),
                        file_.bytes().size());
  StepFileHead head;
  const StepFileHead expected;
  if (bytes.size() >= sizeof(head)) {
    std::memcpy(&head, bytes.data(), sizeof(head));
  }
  if (bytes.size() < sizeof(head) ||
      !std::equal(head.magic, head.magic + sizeof(head.magic), expected.magic)) {
    return fail(ErrorCode::kCorrupt, "is no recording of steps");
  }
  if (head.version != expected.version) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("is a recording of version {}; this build reads version {}",
                            head.version,
                            expected.version));
  }
  if (head.description_bytes > bytes.size() - sizeof(head)) {
    return fail(ErrorCode::kCorrupt, "ends in its description");
  }
  const std::span description = bytes.subspan(sizeof(head), head.description_bytes);
  if (record_checksum(description) != head.checksum) {
    return fail(ErrorCode::kCorrupt, "has a damaged description");
  }
  description_.assign(description.begin(), description.end());
  const size_t begin = std::min(ring_offset(description.size()), bytes.size());
  find_records(bytes.subspan(begin, std::min<size_t>(head.ring_bytes, bytes.size() - begin)));
  return {};
}

void StepFile::find_records(std::span<const uint8_t> ring) {
  size_t at = 0;
  while (at < ring.size()) {
    RecordHead head;
    Found found;
    if (begins_record(ring.subspan(at), head)) {
      found = read_record(ring.subspan(at), head);
      num_damaged_ += found.length == 0 ? 1 : 0;
    }
    if (found.length > 0) {
      records_.push_back(std::move(found.record));
    }
    at += round_up(std::max(found.length, kRecordAlign), kRecordAlign);
  }
  std::ranges::sort(records_, {}, &StepFileRecord::number);
}

}  // namespace warprow
