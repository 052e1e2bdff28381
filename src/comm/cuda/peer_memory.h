// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "device/cuda/peer_group.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow::cuda {

// This rank's region on its GPU, and the regions of the other ranks of its group mapped here. They are processes of one
// host, or threads of one process.
//
// Owns: the region and the mappings.
// Thread: one, whose current device it is on.
class PeerMemory {
 public:
  // Zeros. Throws StartupError if the GPU has too little memory.
  PeerMemory(GroupPlace place, const PeerSizes& sizes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // What the other ranks map it by.
  [[nodiscard]] std::string handle() const;
  // Maps the regions of the group, by rank. Returns why it cannot; "" if it could.
  std::string open(const std::vector<std::string>& handles);
  // After open.
  [[nodiscard]] PeerGroup group(const uint32_t* abort) const;

 private:
  GroupPlace place_;
  PeerLayout layout_;
  std::byte* own_ = nullptr;
  std::vector<std::byte*> regions_;  // by rank; null: not mapped
};

}  // namespace warprow::cuda
