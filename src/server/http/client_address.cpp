// SPDX-License-Identifier: Apache-2.0
#include "server/http/client_address.h"

#include <algorithm>
#include <cstring>

#include <boost/asio/ip/tcp.hpp>

namespace warprow {
namespace {

namespace ip = boost::asio::ip;

std::string group_of(const ip::address& address) {
  if (address.is_v4()) {
    return address.to_string();
  }
  if (address.to_v6().is_v4_mapped()) {
    return ip::make_address_v4(ip::v4_mapped, address.to_v6()).to_string();
  }
  constexpr size_t kNetworkBytes = 8;
  ip::address_v6::bytes_type bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + kNetworkBytes, bytes.end(), 0);
  return ip::address_v6(bytes).to_string() + "/64";
}

}  // namespace

ClientAddress client_address(const ByteSocket& socket) {
  boost::system::error_code error;
  const ByteProtocol::endpoint remote = socket.remote_endpoint(error);
  if (error || (remote.protocol().family() != AF_INET && remote.protocol().family() != AF_INET6)) {
    return {.name = "unix", .group = "unix", .is_local = true};
  }
  ip::tcp::endpoint endpoint;
  endpoint.resize(remote.size());
  std::memcpy(endpoint.data(), remote.data(), remote.size());
  const ip::address address = endpoint.address();
  const std::string group = group_of(address);
  return {.name = address.to_string(),
          .group = group,
          .is_local = address.is_loopback() ||
                      ip::make_address(group.substr(0, group.find('/'))).is_loopback()};
}

}  // namespace warprow
