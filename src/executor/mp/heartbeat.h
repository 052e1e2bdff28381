// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/mp/control_block.h"

#include <cstdint>
#include <thread>

namespace warprow {

// A rank's thread that shows the parent that the process runs. It also ends the process: at once when the parent is gone,
// and two seconds after an abort if the rank has not ended by itself, since its device or a library may wait for ranks
// that are gone.
//
// Owns: the thread, which the destructor ends at once.
class Heartbeat {
 public:
  Heartbeat(ControlBlock& control, int32_t rank, int life_fd);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  int stop_fd_;
  std::thread thread_;
};

}  // namespace warprow
