// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/host_group.h"
#include "comm/tcp/socket.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

class AbortWatch;
struct Hello;

// Where the ranks of a run find each other.
struct Rendezvous {
  std::string address = "127.0.0.1";  // MASTER_ADDR: of rank 0's host
  uint16_t port = 29500;              // MASTER_PORT: rank 0 listens there
  std::string run_id;  // the same for all ranks of a run, so that two runs do not mix
  GroupPlace place;
};

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
  // Waits for all ranks: rank 0 listens, the others try to connect until it does. Throws StartupError when the
  // patience ends, and when ranks do not fit together: version, number of ranks, run id, a rank that is there twice.
  // listener: rank 0 may bring one, and else listens at where.port.
  TcpHostGroup(const Rendezvous& where,
               AbortFlag& abort,
               std::chrono::milliseconds patience,
               std::optional<Listener> listener = {});
  ~TcpHostGroup() override;

  std::vector<std::string> exchange(const std::string& mine) override;

  // New connections between the members of this rank's group, which are ranks in ascending order. All ranks call it
  // at the same time, each with a group that has itself; groups do not overlap.
  TcpMesh connect(const std::vector<int32_t>& members);

  [[nodiscard]] AbortFlag& abort() const { return abort_; }

 private:
  void find_ranks(Listener listener);
  void find_rank_0();
  [[nodiscard]] std::string objection(const Hello& hello) const;
  [[nodiscard]] std::vector<int32_t> missing() const;
  [[nodiscard]] std::vector<int32_t> silent_from(int32_t first) const;
  [[noreturn]] void give_up(const std::string& why);
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
  std::vector<Socket> sockets_;         // by rank; on other ranks than 0 only that of rank 0
  std::vector<std::string> addresses_;  // by rank, numeric
  uint32_t num_meshes_ = 0;
  std::unique_ptr<AbortWatch> watch_;
};

}  // namespace warprow
