// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/communicator.h"
#include "comm/tcp/socket.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// Where the ranks of a run find each other.
struct Rendezvous {
  std::string address = "127.0.0.1";  // MASTER_ADDR: of rank 0's host
  uint16_t port = 29500;              // MASTER_PORT: rank 0 listens there
  std::string run_id;  // the same for all ranks of a run, so that two runs do not mix
  GroupPlace place;
};

// The ranks of a run, as one of them found them.
struct FoundRanks {
  std::vector<Socket> sockets;         // by rank: on rank 0 to all others, on others to rank 0
  std::vector<std::string> addresses;  // by rank, numeric
};

// Waits for all ranks: rank 0 listens, the others try to connect until it does. Throws StartupError when the patience
// ends, and when ranks do not fit together: version, number of ranks, run id, a rank that is there twice.
//   listener  rank 0 may bring one, and else listens at where.port
FoundRanks find_ranks(const Rendezvous& where,
                      const AbortFlag& abort,
                      std::chrono::milliseconds patience,
                      std::optional<Listener> listener);

// Whether the address can only be meant for ranks of one host.
bool for_one_host(const std::string& address);

}  // namespace warprow
