// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/math.h"

#include <cstddef>
#include <cstdint>
#include <functional>

namespace warprow {

// What an arena holds; names appear in the memory plan.
enum class ArenaPurpose : uint8_t { kWeights, kKvCache, kState, kWorkspace };
const char* arena_name(ArenaPurpose purpose);

// A range of device memory that is handed out from the front. Addresses never change while the
// arena lives, so views and captured graphs stay valid.
//
// Owns: the mapping, unmapped by `release`.
// Thread: one.
// Invariant: used() <= capacity(); alignment of every piece is kAlignment.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;
  using Release = std::function<void(std::byte* base, size_t bytes)>;
  using SetResident = std::function<void(bool resident)>;

  Arena() = default;
  Arena(ArenaPurpose purpose,
        std::byte* base,
        size_t capacity,
        Release release,
        SetResident set_resident = {})
      : purpose_(purpose),
        base_(base),
        capacity_(capacity),
        release_(std::move(release)),
        set_resident_(std::move(set_resident)) {}
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // n elements of T, aligned. A check fails if the arena is too small: the memory plan sized it, so that is a bug.
  template <typename T>
  T* alloc(int64_t n) {
    return reinterpret_cast<T*>(alloc_bytes(static_cast<size_t>(n) * sizeof(T)));
  }
  std::byte* alloc_bytes(size_t bytes);

  // For scratch memory: take a mark, allocate, reset to the mark.
  [[nodiscard]] size_t mark() const { return used_; }
  void reset(size_t mark = 0) { used_ = mark; }

  // Unmaps the memory and returns it to the system, or maps some again at the same addresses; its contents are
  // lost. The device must be idle.
  void set_resident(bool resident);
  [[nodiscard]] bool resident() const { return resident_; }

  [[nodiscard]] ArenaPurpose purpose() const { return purpose_; }
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] size_t used() const { return used_; }
  [[nodiscard]] size_t high_water() const { return high_water_; }
  [[nodiscard]] size_t capacity() const { return capacity_; }

 private:
  ArenaPurpose purpose_ = ArenaPurpose::kWorkspace;
  std::byte* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t high_water_ = 0;
  Release release_;
  SetResident set_resident_;
  bool resident_ = true;
};

// Pinned host memory, zero-filled.
// Owns: the mapping.
class PinnedBuffer {
 public:
  using Release = std::function<void(std::byte* base, size_t bytes)>;
  PinnedBuffer() = default;
  PinnedBuffer(std::byte* base, size_t bytes, Release release)
      : base_(base), bytes_(bytes), release_(std::move(release)) {}
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  [[nodiscard]] std::byte* data() const { return base_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] T* as(size_t byte_offset = 0) const {
    WR_DCHECK(byte_offset <= bytes_);
    return reinterpret_cast<T*>(base_ + byte_offset);
  }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  Release release_;
};

}  // namespace warprow
