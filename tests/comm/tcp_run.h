// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/tcp/tcp_host_group.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace warprow::test {

// A run of TCP ranks on this host, at a port that the system chooses.
class TcpRun {
 public:
  explicit TcpRun(int32_t size) : size_(size), listener_(std::in_place, true, 0) {
    port_ = listener_->port();
  }

  [[nodiscard]] uint16_t port() const { return port_; }
  // How a rank finds the run; for rank 0 with the listener.
  std::unique_ptr<TcpHostGroup> join(
      int32_t rank,
      AbortFlag& abort,
      std::chrono::milliseconds patience = std::chrono::seconds(20)) {
    return join({"127.0.0.1", port_, "a run", {rank, size_}}, abort, patience);
  }
  std::unique_ptr<TcpHostGroup> join(const Rendezvous& where,
                                     AbortFlag& abort,
                                     std::chrono::milliseconds patience) {
    return where.place.rank == 0
               ? std::make_unique<TcpHostGroup>(
                     where, abort, patience, std::exchange(listener_, std::nullopt))
               : std::make_unique<TcpHostGroup>(where, abort, patience);
  }
  // Lets go of the port.
  void stop_listening() { listener_.reset(); }

 private:
  int32_t size_;
  std::optional<Listener> listener_;  // rank 0 takes it
  uint16_t port_ = 0;
};

}  // namespace warprow::test
