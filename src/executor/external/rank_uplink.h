// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/external/rank_link.h"
#include "executor/mp/control_block.h"
#include "executor/mp/message_ring.h"
#include "executor/mp/rank_memory.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace warprow {

// In the process of a rank other than 0: carries messages from rank 0 into the ring that the rank reads, and the rank's
// answers and state to rank 0. When rank 0 says nothing for five seconds, it raises the abort flag; and when the process
// lives two seconds after an abort, since its device waits for ranks that are gone, it ends the process.
//
// Owns: the connection and two threads.
class RankUplink {
 public:
  // `memory` is of this rank alone.
  RankUplink(RankMemory& memory, int32_t rank, int32_t num_ranks, Socket socket);
  // Sends what the rank has written first.
  ~RankUplink();
  RankUplink(const RankUplink&) = delete;
  RankUplink& operator=(const RankUplink&) = delete;

  // Returns when all answers and the rank's state have been sent, or after a second.
  void flush();

 private:
  void receive();
  void send();
  void send_report();
  void lose(const char* why);

  ControlBlock& control_;
  int32_t rank_;
  int32_t num_ranks_;
  RankLink link_;
  RingWriter commands_;
  RingReader answers_;
  std::atomic<bool> stopping_ = false;
  std::atomic<uint32_t> flushes_asked_ = 0;
  std::atomic<uint32_t> flushes_done_ = 0;
  std::vector<uint8_t> report_;
  std::thread sender_;
  std::thread receiver_;
};

}  // namespace warprow
