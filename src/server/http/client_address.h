// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http/byte_stream.h"

#include <string>

// For http/ alone: it shows Boost.
namespace warprow {

// Who is at the other end of a socket.
struct ClientAddress {
  std::string name;  // the address as it is written, or "unix"
  std::string
      group;  // whose connections count together: an IPv4 address, or the /64 network of an IPv6 one
  bool is_local = false;  // on this machine
};

ClientAddress client_address(const ByteSocket& socket);

}  // namespace warprow
