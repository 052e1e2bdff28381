// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_host_group.h"

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/tcp/abort_watch.h"
#include "comm/tcp/hello.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <poll.h>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace warprow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRetry{100};
// How long the reason of a lost connection may take to arrive through the watch.
constexpr milliseconds kReasonTime{300};

// Rank 0's answer to a hello begins with it. Then: why the rank is refused, or "" and the addresses of all ranks.
constexpr uint64_t kAnswer = 0x6f726b6e61727077;

bool for_this_host_alone(const std::string& address) {
  return address == "localhost" || address.starts_with("127.");
}

void answer(const Socket& socket, const std::string& why_not, const Patience& patience) {
  if (socket.valid() && send_value(socket, kAnswer, patience) == SocketResult::kDone) {
    send_string(socket, why_not, patience);
  }
}

}  // namespace

TcpHostGroup::TcpHostGroup(const Rendezvous& where,
                           AbortFlag& abort,
                           milliseconds patience,
                           std::optional<Listener> listener)
    : HostGroup(where.place, abort, patience),
      where_(where),
      sockets_(static_cast<size_t>(where.place.size)),
      addresses_(static_cast<size_t>(where.place.size)) {
  if (where.run_id.size() > kMostRunId) {
    throw StartupError(
        ErrorCode::kInvalidArgument,
        fmt::format("the run id has {} characters, at most {}", where.run_id.size(), kMostRunId));
  }
  if (place().rank != 0) {
    find_rank_0();
  } else if (place().size > 1) {
    find_ranks(listener ? std::move(*listener)
                        : Listener(for_this_host_alone(where.address), where.port));
  }
  std::vector<int32_t> all(sockets_.size());
  std::iota(all.begin(), all.end(), 0);
  watch_ = std::make_unique<AbortWatch>(connect(all), abort);
}

TcpHostGroup::~TcpHostGroup() = default;

// Why rank 0 does not accept a rank; "" if it does.
std::string TcpHostGroup::objection(const Hello& hello) const {
  const int32_t rank = hello.place.rank;
  if (hello.place.size != place().size) {
    return fmt::format(
        "rank {} was started for {} ranks and rank 0 for {}", rank, hello.place.size, place().size);
  }
  if (rank <= 0 || rank >= place().size) {
    return fmt::format("there is another rank {} of {}", rank, place().size);
  }
  if (sockets_[static_cast<size_t>(rank)].valid()) {
    return fmt::format(
        "rank {} is there twice, the first at {}", rank, addresses_[static_cast<size_t>(rank)]);
  }
  return "";
}

std::vector<int32_t> TcpHostGroup::missing() const {
  std::vector<int32_t> ranks;
  for (int32_t rank = 1; rank < place().size; ++rank) {
    if (!sockets_[static_cast<size_t>(rank)].valid()) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

// Tells the ranks that have come and fails.
void TcpHostGroup::give_up(const std::string& why) {
  const Patience brief{std::chrono::steady_clock::now() + kReasonTime, &abort_};
  for (const Socket& socket : sockets_) {
    answer(socket, why, brief);
  }
  throw StartupError(ErrorCode::kBusy, fmt::format("rank 0 at port {}: {}", where_.port, why));
}

void TcpHostGroup::find_ranks(Listener listener) {
  where_.port = listener.port();
  const Patience patience = this->patience();
  std::string stranger;  // the last connection that was refused
  while (!missing().empty()) {
    Socket socket = listener.accept(patience);
    if (!socket.valid()) {
      if (abort_.raised()) {
        refuse({});
      }
      give_up(fmt::format("{} of {} did not come within {}{}",
                          list_ranks(missing()),
                          place().size,
                          patience_,
                          stranger));
    }
    const std::string address = peer_address(socket);
    const ReceivedHello received = receive_hello(socket, patience);
    const bool of_this_run = received.hello && received.hello->run_id == where_.run_id;
    if (!of_this_run) {
      const std::string why =
          received.hello
              ? fmt::format("it is of run '{}', not of '{}'", received.hello->run_id, where_.run_id)
              : received.why_not;
      stranger = fmt::format("; {} was refused: {}", address, why);
      WR_LOG_WARN("rank 0 at port {} refused {}: {}", where_.port, address, why);
      answer(socket, why, patience);
      continue;
    }
    const std::string why = objection(*received.hello);
    if (!why.empty()) {
      answer(socket, why, patience);
      give_up(why);
    }
    const auto rank = static_cast<size_t>(received.hello->place.rank);
    sockets_[rank] = std::move(socket);
    addresses_[rank] = address;
  }
  for (int32_t rank = 1; rank < place().size; ++rank) {
    const Socket& socket = sockets_[static_cast<size_t>(rank)];
    answer(socket, "", patience);
    for (const std::string& address : addresses_) {
      check(rank, send_string(socket, address, patience));
    }
  }
}

// Whoever listens may be the end of an earlier run, so a connection that only closes is tried again.
void TcpHostGroup::find_rank_0() {
  const Patience patience = this->patience();
  std::string why_not = "no attempt was made";
  Socket& socket = sockets_[0];
  for (; !patience.over(); std::this_thread::sleep_for(kRetry)) {
    socket = connect_once(where_.address, where_.port, patience, why_not);
    if (!socket.valid()) {
      continue;
    }
    uint64_t mark = 0;
    std::string refusal;
    SocketResult result =
        send_hello(socket, {.mesh = 0, .place = place(), .run_id = where_.run_id}, patience);
    if (result == SocketResult::kDone) {
      result = receive_value(socket, mark, patience);
    }
    if (result == SocketResult::kGaveUp) {
      why_not = "it has not found all ranks";
      break;
    }
    if (result != SocketResult::kDone || mark != kAnswer) {
      why_not = result != SocketResult::kDone ? "it closed the connection"
                                              : "what listens there is not a rank of warprow";
      continue;
    }
    check(0, receive_string(socket, refusal, patience));
    if (!refusal.empty()) {
      throw StartupError(ErrorCode::kBusy,
                         fmt::format("rank {} was refused by rank 0 at {}:{}: {}",
                                     place().rank,
                                     where_.address,
                                     where_.port,
                                     refusal));
    }
    for (std::string& address : addresses_) {
      check(0, receive_string(socket, address, patience));
    }
    // Rank 0 sees ranks of its own host at a loopback address; from elsewhere they are where rank 0 is.
    addresses_[0] = peer_address(socket);
    for (std::string& address : addresses_) {
      address = is_loopback(address) ? addresses_[0] : address;
    }
    return;
  }
  if (abort_.raised()) {
    refuse({});
  }
  throw StartupError(ErrorCode::kBusy,
                     fmt::format("rank {} of {} found no rank 0 at {}:{} within {}: {}",
                                 place().rank,
                                 place().size,
                                 where_.address,
                                 where_.port,
                                 patience_,
                                 why_not));
}

void TcpHostGroup::refuse_connection(int32_t rank, SocketResult result) const {
  const Patience reason{std::chrono::steady_clock::now() + kReasonTime, &abort_};
  while (result == SocketResult::kClosed && !reason.over()) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  if (result == SocketResult::kGaveUp || abort_.raised()) {
    refuse({rank});
  }
  throw StartupError(
      ErrorCode::kBusy,
      fmt::format("rank {}: rank {} at {} closed the connection",
                  place().rank,
                  rank,
                  rank == 0 ? where_.address : addresses_[static_cast<size_t>(rank)]));
}

// This rank, and those after it that have sent nothing.
std::vector<int32_t> TcpHostGroup::silent_from(int32_t first) const {
  std::vector<int32_t> ranks{first};
  for (int32_t rank = first + 1; rank < place().size; ++rank) {
    const Patience none{std::chrono::steady_clock::now(), &abort_};
    if (!wait_ready(sockets_[static_cast<size_t>(rank)], POLLIN, none)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<std::string> TcpHostGroup::exchange(const std::string& mine) {
  const Patience patience = this->patience();
  std::vector<std::string> all(sockets_.size());
  all[static_cast<size_t>(place().rank)] = mine;
  if (place().rank != 0) {
    check(0, send_string(sockets_[0], mine, patience));
    for (std::string& text : all) {
      check(0, receive_string(sockets_[0], text, patience));
    }
    return all;
  }
  for (int32_t rank = 1; rank < place().size; ++rank) {
    const auto at = static_cast<size_t>(rank);
    const SocketResult result = receive_string(sockets_[at], all[at], patience);
    if (result == SocketResult::kGaveUp) {
      refuse(silent_from(rank));
    }
    check(rank, result);
  }
  for (int32_t rank = 1; rank < place().size; ++rank) {
    for (const std::string& text : all) {
      check(rank, send_string(sockets_[static_cast<size_t>(rank)], text, patience));
    }
  }
  return all;
}

TcpMesh TcpHostGroup::connect(const std::vector<int32_t>& members) {
  const auto self = std::find(members.begin(), members.end(), place().rank);
  WR_CHECK(self != members.end(), "rank {} is not in its own group", place().rank);
  const Patience patience = this->patience();
  const uint32_t mesh_number = ++num_meshes_;
  Listener listener(for_this_host_alone(where_.address), 0);
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
  for (int32_t left = mesh.place.size - 1 - mesh.place.rank; left > 0;) {
    Socket socket = listener.accept(patience);
    if (!socket.valid()) {
      std::vector<int32_t> late;
      for (size_t member = static_cast<size_t>(mesh.place.rank) + 1; member < members.size();
           ++member) {
        if (!mesh.sockets[member].valid()) {
          late.push_back(members[member]);
        }
      }
      refuse(late);
    }
    const ReceivedHello received = receive_hello(socket, patience);
    const auto from = received.hello
                          ? std::find(self + 1, members.end(), received.hello->place.rank)
                          : members.end();
    if (from == members.end() || received.hello->mesh != mesh_number ||
        received.hello->run_id != where_.run_id) {
      WR_LOG_WARN("rank {} refused a connection from {}", place().rank, peer_address(socket));
      continue;
    }
    mesh.sockets[static_cast<size_t>(from - members.begin())] = std::move(socket);
    --left;
  }
  return mesh;
}

// The rank listens already, so an attempt that fails has a reason; but packets may be lost.
Socket TcpHostGroup::connect_to(int32_t rank,
                                const std::string& port,
                                uint32_t mesh,
                                const Patience& patience) const {
  const std::string& address = addresses_[static_cast<size_t>(rank)];
  std::string why_not;
  for (; !patience.over(); std::this_thread::sleep_for(kRetry)) {
    Socket socket =
        connect_once(address, static_cast<uint16_t>(std::stoi(port)), patience, why_not);
    if (socket.valid()) {
      check(rank, send_hello(socket, {mesh, place(), where_.run_id}, patience));
      return socket;
    }
  }
  if (abort_.raised()) {
    refuse({});
  }
  throw StartupError(ErrorCode::kBusy,
                     fmt::format("rank {} cannot connect to rank {} at {}:{}: {}",
                                 place().rank,
                                 rank,
                                 address,
                                 port,
                                 why_not));
}

}  // namespace warprow
