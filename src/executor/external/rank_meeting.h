// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/communicator.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/rank_place.h"
#include "comm/shared_memory.h"
#include "comm/tcp/tcp_host_group.h"
#include "config/engine_config.h"
#include "executor/external/launch.h"
#include "executor/mp/local_rank.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace warprow {

// A rank of a launcher as it introduces itself to the others.
struct Introduction {
  struct Setting {
    std::string name;
    std::string text;
  };
  std::vector<Setting> settings;  // that must be equal on all ranks, the version first
  std::string host_mark;          // equal on ranks that may share memory
  std::string cores;              // that it may use
  std::string gpus;               // CUDA_VISIBLE_DEVICES
  std::string where;              // "process 12 on node3"
};

// Of this process.
Introduction introduce(const EngineConfig& config);
// The first disagreement of two ranks, as a sentence with the setting and both values; "" if there is none.
std::string disagreement(const std::vector<Introduction>& ranks);

std::string encode(const Introduction& introduction);
// kCorrupt if the bytes are no introduction.
Result<Introduction> decode_introduction(const std::string& bytes);

// The ranks that a launcher started, and what they compute together through: they have found each other, agree on the
// settings, and are connected. Ranks of one group that are on one host share memory; others use TCP.
//
// Owns: connections, shared memory, communicators; the threads that carry an abort to the other ranks.
// Thread: one.
class RankMeeting {
 public:
  // Waits for all ranks. Throws StartupError, the same on all ranks if they disagree.
  RankMeeting(const EngineConfig& config,
              const Launch& launch,
              const RankPlace& place,
              AbortFlag& abort);

  [[nodiscard]] RankComms comms() const;
  // This rank's part of its host.
  [[nodiscard]] HostShare share() const;
  // Where a rank runs.
  [[nodiscard]] const std::string& where(int32_t rank) const {
    return ranks_[static_cast<size_t>(rank)].where;
  }
  // The connections between all ranks for messages of the executor. Taken once.
  TcpMesh take_mesh() { return std::move(mesh_); }

 private:
  void wait_for_readers();
  std::unique_ptr<Communicator> join(const std::vector<std::vector<int32_t>>& groups,
                                     GroupPlace place,
                                     SlotSizes sizes,
                                     size_t outbox_bytes);
  [[nodiscard]] bool may_share(const std::vector<int32_t>& members) const;

  RankPlace place_;
  bool tcp_only_;
  AbortFlag& abort_;
  std::unique_ptr<TcpHostGroup> all_;
  std::vector<Introduction> ranks_;
  TcpMesh mesh_;
  std::vector<SharedMemory> memories_;  // of the communicators
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;
};

}  // namespace warprow
