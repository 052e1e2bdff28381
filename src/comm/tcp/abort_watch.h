// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/tcp/tcp_host_group.h"

#include <atomic>
#include <thread>
#include <vector>

namespace warprow {

// Carries an abort between processes that share no memory. When the flag here is raised it tells the others; when one
// of them tells, or its connection ends without a farewell, it raises the flag here.
//
// Owns: a connection to every rank and the thread `wr-abort-watch`. Destroying it says farewell.
class AbortWatch {
 public:
  AbortWatch(TcpMesh mesh, AbortFlag& abort);
  ~AbortWatch();
  AbortWatch(const AbortWatch&) = delete;
  AbortWatch& operator=(const AbortWatch&) = delete;

 private:
  void watch();
  void listen(size_t member);
  void tell(uint32_t kind);

  TcpMesh mesh_;
  AbortFlag& abort_;
  std::vector<bool> gone_;  // members that said farewell or are lost, and this one
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace warprow
