// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/host_group.h"
#include "comm/tcp/rendezvous.h"
#include "comm/tcp/socket.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

class AbortWatch;

// The connections of a rank to the other members of a group, and those members' ranks in the engine.
struct TcpMesh {
  GroupPlace place;
  std::vector<int32_t> ranks;   // by member
  std::vector<Socket> sockets;  // by member; this rank's own is not valid
};

// A host group over TCP, for ranks of several hosts: rank 0 gathers and hands out. While it lives, an abort of any
// rank raises the flag of all, and so does the end of a rank's process.
//
// Data is neither encrypted nor authenticated: for networks where every host is trusted.
//
// Owns: a connection to rank 0 (on rank 0: to every rank), and the watch's connections and thread.
// Thread: one at a time.
class TcpHostGroup final : public HostGroup {
 public:
  // Waits for all ranks as find_ranks (comm/tcp/rendezvous.h) does.
  TcpHostGroup(const Rendezvous& where,
               AbortFlag& abort,
               std::chrono::milliseconds patience,
               std::optional<Listener> listener = {});
  ~TcpHostGroup() override;

  std::vector<std::string> exchange(const std::string& mine) override;

  // New connections between the members of this rank's group, which are ranks in ascending order. All ranks call it
  // at the same time, each with a group that has itself; groups do not overlap.
  TcpMesh connect(const std::vector<int32_t>& members);

 private:
  [[nodiscard]] std::vector<int32_t> silent_from(int32_t first) const;
  bool accept_member(Listener& listener,
                     TcpMesh& mesh,
                     uint32_t mesh_number,
                     const Patience& patience) const;
  [[nodiscard]] Socket connect_to(int32_t rank,
                                  const std::string& port,
                                  uint32_t mesh,
                                  const Patience& patience) const;
  [[nodiscard]] Patience patience() const { return {deadline(), &abort_}; }
  // Fails the start-up because of what happened with a rank.
  [[noreturn]] void refuse_connection(int32_t rank, SocketResult result) const;
  void check(int32_t rank, SocketResult result) const {
    if (result != SocketResult::kDone) {
      refuse_connection(rank, result);
    }
  }

  Rendezvous where_;
  FoundRanks found_;
  uint32_t num_meshes_ = 0;
  std::unique_ptr<AbortWatch> watch_;
};

}  // namespace warprow
