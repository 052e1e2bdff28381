// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_host_group.h"

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/tcp/abort_watch.h"
#include "comm/tcp/hello.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <poll.h>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace warprow {
namespace {

using std::chrono::milliseconds;

// Between attempts to connect.
constexpr milliseconds kGroupRetry{100};
// How long the reason of a lost connection may take to arrive through the watch.
constexpr milliseconds kReasonTime{300};

}  // namespace

TcpHostGroup::TcpHostGroup(const Rendezvous& where,
                           AbortFlag& abort,
                           milliseconds patience,
                           std::optional<Listener> listener)
    : HostGroup(where.place, abort, patience),
      where_(where),
      found_(find_ranks(where, abort, patience, std::move(listener))) {
  std::vector<int32_t> all(static_cast<size_t>(place().size));
  std::iota(all.begin(), all.end(), 0);
  watch_ = std::make_unique<AbortWatch>(connect(all), abort);
}

TcpHostGroup::~TcpHostGroup() = default;

void TcpHostGroup::refuse_connection(int32_t rank, SocketResult result) const {
  const Patience reason{std::chrono::steady_clock::now() + kReasonTime, &abort_};
  while (result == SocketResult::kClosed && !reason.over()) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  if (result == SocketResult::kGaveUp || abort_.raised()) {
    refuse({rank});
  }
  throw StartupError(ErrorCode::kBusy,
                     fmt::format("rank {}: rank {} at {} closed the connection",
                                 place().rank,
                                 rank,
                                 found_.addresses[static_cast<size_t>(rank)]));
}

// This rank, and those after it that have sent nothing.
std::vector<int32_t> TcpHostGroup::silent_from(int32_t first) const {
  std::vector<int32_t> ranks{first};
  for (int32_t rank = first + 1; rank < place().size; ++rank) {
    const Patience none{std::chrono::steady_clock::now(), &abort_};
    if (!wait_ready(found_.sockets[static_cast<size_t>(rank)], POLLIN, none)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<std::string> TcpHostGroup::exchange(const std::string& mine) {
  const Patience patience = this->patience();
  std::vector<std::string> all(static_cast<size_t>(place().size));
  all[static_cast<size_t>(place().rank)] = mine;
  if (place().rank != 0) {
    check(0, send_string(found_.sockets[0], mine, patience));
    for (std::string& text : all) {
      check(0, receive_string(found_.sockets[0], text, patience));
    }
    return all;
  }
  for (int32_t rank = 1; rank < place().size; ++rank) {
    const auto at = static_cast<size_t>(rank);
    const SocketResult result = receive_string(found_.sockets[at], all[at], patience);
    if (result == SocketResult::kGaveUp) {
      refuse(silent_from(rank));
    }
    check(rank, result);
  }
  for (int32_t rank = 1; rank < place().size; ++rank) {
    for (const std::string& text : all) {
      check(rank, send_string(found_.sockets[static_cast<size_t>(rank)], text, patience));
    }
  }
  return all;
}

TcpMesh TcpHostGroup::connect(const std::vector<int32_t>& members) {
  const auto self = std::find(members.begin(), members.end(), place().rank);
  WR_CHECK(self != members.end(), "rank {} is not in its own group", place().rank);
  const Patience patience = this->patience();
  const uint32_t mesh_number = ++num_meshes_;
  Listener listener(for_one_host(where_.address), 0);
  const std::vector<std::string> ports = exchange(std::to_string(listener.port()));

  TcpMesh mesh;
  mesh.place = {static_cast<int32_t>(self - members.begin()), static_cast<int32_t>(members.size())};
  mesh.ranks = members;
  mesh.sockets.resize(members.size());
  for (int32_t member = 0; member < mesh.place.rank; ++member) {
    const int32_t rank = members[static_cast<size_t>(member)];
    mesh.sockets[static_cast<size_t>(member)] =
        connect_to(rank, ports[static_cast<size_t>(rank)], mesh_number, patience);
  }
  while (accept_member(listener, mesh, mesh_number, patience)) {
  }
  return mesh;
}

// Takes one connection of a later member. Returns whether some are still missing.
bool TcpHostGroup::accept_member(Listener& listener,
                                 TcpMesh& mesh,
                                 uint32_t mesh_number,
                                 const Patience& patience) const {
  std::vector<int32_t> missing;
  for (size_t member = static_cast<size_t>(mesh.place.rank) + 1; member < mesh.ranks.size();
       ++member) {
    if (!mesh.sockets[member].valid()) {
      missing.push_back(mesh.ranks[member]);
    }
  }
  if (missing.empty()) {
    return false;
  }
  Socket socket = listener.accept(patience);
  if (!socket.valid()) {
    refuse(missing);
  }
  const ReceivedHello received = receive_hello(socket, patience);
  const int32_t rank = received.hello ? received.hello->place.rank : -1;
  const auto from = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
  if (std::find(missing.begin(), missing.end(), rank) == missing.end() ||
      received.hello->mesh != mesh_number || received.hello->run_id != where_.run_id) {
    WR_LOG_WARN("rank {} refused a connection from {}", place().rank, peer_address(socket));
    return true;
  }
  mesh.sockets[static_cast<size_t>(from - mesh.ranks.begin())] = std::move(socket);
  return true;
}

// The rank listens already, so an attempt that fails has a reason; but packets may be lost.
Socket TcpHostGroup::connect_to(int32_t rank,
                                const std::string& port,
                                uint32_t mesh,
                                const Patience& patience) const {
  const std::string& address = found_.addresses[static_cast<size_t>(rank)];
  std::string why_not;
  uint16_t number = 0;
  if (std::from_chars(port.data(), port.data() + port.size(), number).ec != std::errc{}) {
    throw StartupError(ErrorCode::kCorrupt,
                       fmt::format("rank {} says that it listens on port '{}'", rank, port));
  }
  for (; !patience.over(); std::this_thread::sleep_for(kGroupRetry)) {
    Socket socket = connect_once(address, number, patience, why_not);
    if (socket.valid()) {
      check(rank, send_hello(socket, {mesh, place(), where_.run_id}, patience));
      return socket;
    }
  }
  throw_if_aborted(place().rank, abort_);
  throw StartupError(ErrorCode::kBusy,
                     fmt::format("rank {} cannot connect to rank {} at {}:{}: {}",
                                 place().rank,
                                 rank,
                                 address,
                                 port,
                                 why_not));
}

}  // namespace warprow
