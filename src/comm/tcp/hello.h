// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "comm/tcp/socket.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace warprow {

// The longest run id.
inline constexpr size_t kMostRunId = 127;

// The first message on a connection between ranks.
struct Hello {
  uint32_t mesh = 0;  // 0: the rendezvous; else which of the group's meshes
  GroupPlace place;   // of the rank that connects
  std::string run_id;
};

SocketResult send_hello(const Socket& socket, const Hello& hello, const Patience& patience);

// What arrived: a hello, or why it is none.
struct ReceivedHello {
  std::optional<Hello> hello;
  std::string why_not;
};
// Waits only briefly: a rank sends its hello as soon as it is connected.
ReceivedHello receive_hello(const Socket& socket, const Patience& patience);

}  // namespace warprow
