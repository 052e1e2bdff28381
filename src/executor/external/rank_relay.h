// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/external/rank_link.h"
#include "executor/external/rank_meeting.h"
#include "executor/mp/message_ring.h"
#include "executor/mp/rank_memory.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace warprow {

// In rank 0's process: carries the executor's messages to the ranks of other processes, and their answers and states into
// the memory that the executor reads. To the executor they are like ranks that it started itself.
//
// Owns: the connections, and two threads for each rank. They end when the message to stop has passed, or with an abort;
// the destructor waits for one of these.
class RankRelay {
 public:
  RankRelay(RankMemory& memory, RankMeeting& meeting);
  ~RankRelay();
  RankRelay(const RankRelay&) = delete;
  RankRelay& operator=(const RankRelay&) = delete;

 private:
  struct Peer {
    Peer(int32_t rank_of_peer, RankMemory& memory, Socket socket);

    int32_t rank;
    RankState& state;
    RankLink link;
    RingReader commands;
    RingWriter answers;
    std::atomic<bool> stopped = false;  // it was told to
    std::thread sender;
    std::thread receiver;
  };

  void send(Peer& peer);
  void receive(Peer& peer);
  // Whether the message is one that a rank sends.
  bool take(Peer& peer, const RingMessage& message);
  void lose(const Peer& peer, const char* why);

  AbortFlag& abort_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace warprow
