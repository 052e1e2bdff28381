// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace warprow {

// A whole file, mapped read-only. Pages are read on first touch, so opening costs the same for any
// size.
// Owns: the mapping (the descriptor is closed once mapped).
// Thread: const methods from any thread.
// Invariant: bytes() stays at one address for the object's life, also across moves. If another process shortens the
// file while it is mapped, access faults; this is not detected here.
class MappedFile {
 public:
  // kNotFound if there is no such file, kInvalidArgument if it is not a regular file or cannot be read.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Drops the pages that hold [offset, offset + len) from this process's memory; a later access reads them again.
  // It drops whole pages, so neighbours that share the first or last page are dropped as well.
  void advise_drop(size_t offset, size_t len) const;
  // Advises that the file will be read once, front to back.
  void advise_sequential() const;

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  void unmap();

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace warprow
