// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "net/byte_stream.h"

// Only for http/: this header includes Boost.
namespace warprow {

// The peer of a socket.
struct ClientAddress {
  std::string name;  // the address as text, or "unix"
  // The connections of a group count together: an IPv4 address, or the /64 network of an IPv6 address.
  std::string group;
  bool is_local = false;  // on this machine
};

ClientAddress client_address(const ByteSocket& socket);

}  // namespace warprow
