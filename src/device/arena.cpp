// SPDX-License-Identifier: Apache-2.0
#include "device/arena.h"

#include <algorithm>
#include <utility>

namespace warprow {

const char* arena_name(ArenaPurpose purpose) {
  switch (purpose) {
    case ArenaPurpose::kWeights:
      return "weights";
    case ArenaPurpose::kKvCache:
      return "kv_cache";
    case ArenaPurpose::kState:
      return "state";
    case ArenaPurpose::kWorkspace:
      return "workspace";
  }
  return "?";
}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(purpose_, other.purpose_);
  std::swap(base_, other.base_);
  std::swap(capacity_, other.capacity_);
  std::swap(used_, other.used_);
  std::swap(high_water_, other.high_water_);
  std::swap(release_, other.release_);
  std::swap(set_resident_, other.set_resident_);
  std::swap(resident_, other.resident_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr && release_) {
    release_(base_, capacity_);
  }
}

void Arena::set_resident(bool resident) {
  if (resident == resident_ || !set_resident_) {
    return;
  }
  set_resident_(resident);
  resident_ = resident;
}

std::byte* Arena::alloc_bytes(size_t bytes) {
  const size_t begin = round_up(used_, kAlignment);
  WR_CHECK(bytes <= capacity_ && begin <= capacity_ - bytes,
           "{} arena: {} bytes wanted at {} of {}",
           arena_name(purpose_),
           bytes,
           begin,
           capacity_);
  used_ = begin + bytes;
  high_water_ = std::max(high_water_, used_);
  return base_ + begin;
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(release_, other.release_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (base_ != nullptr && release_) {
    release_(base_, bytes_);
  }
}

}  // namespace warprow
