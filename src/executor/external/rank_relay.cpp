// SPDX-License-Identifier: Apache-2.0
#include "executor/external/rank_relay.h"

#include "base/log.h"
#include "executor/external/rank_report.h"
#include "executor/mp/rank_messages.h"
#include "executor/mp/step_digest.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <pthread.h>
#include <utility>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that hears nothing for much longer ends.
constexpr auto kBeat = std::chrono::milliseconds(200);
constexpr auto kRelayTurn = std::chrono::milliseconds(100);
// How long a rank that was told to stop may take to close its connection.
constexpr auto kGoodbye = std::chrono::seconds(1);
// How long the reason of a lost connection may take to arrive through the watch of aborts.
constexpr auto kRelayReasonTime = std::chrono::milliseconds(300);

void show_where(RankState& state, const std::string& where) {
  const size_t n = std::min(where.size(), sizeof state.where - 1);
  std::copy_n(where.begin(), n, state.where);
}

}  // namespace

RankRelay::Peer::Peer(int32_t rank_of_peer, RankMemory& memory, Socket socket)
    : rank(rank_of_peer),
      state(memory.control->ranks[rank]),
      link(std::move(socket), memory.control->abort),
      commands(memory.commands, rank, memory.control->abort),
      answers(memory.answers[static_cast<size_t>(rank)], memory.control->abort) {}

RankRelay::RankRelay(RankMemory& memory, RankMeeting& meeting) : abort_(memory.control->abort) {
  TcpMesh mesh = meeting.take_mesh();
  for (int32_t rank = 1; rank < mesh.place.size; ++rank) {
    peers_.push_back(
        std::make_unique<Peer>(rank, memory, std::move(mesh.sockets[static_cast<size_t>(rank)])));
    Peer& peer = *peers_.back();
    show_where(peer.state, meeting.where(rank));
    peer.sender = std::thread([this, &peer] { send(peer); });
    peer.receiver = std::thread([this, &peer] { receive(peer); });
    pthread_setname_np(peer.sender.native_handle(), "wr-relay-out");
    pthread_setname_np(peer.receiver.native_handle(), "wr-relay-in");
  }
}

RankRelay::~RankRelay() {
  for (const auto& peer : peers_) {
    peer->sender.join();
    peer->receiver.join();
  }
}

void RankRelay::send(Peer& peer) {
  RingMessage message;
  while (!abort_.raised()) {
    if (!peer.commands.wait(Clock::now() + kBeat)) {
      if (!peer.link.send(static_cast<uint32_t>(LinkMessage::kBeat), {})) {
        return lose(peer, "takes no messages");
      }
      continue;
    }
    if (!peer.commands.read(message)) {
      return;
    }
    const auto kind = static_cast<ToRank>(message.kind);
    if (kind == ToRank::kStart) {  // it has read its own settings
      continue;
    }
    peer.stopped.store(kind == ToRank::kStop);
    if (!peer.link.send(message.kind, message.bytes)) {
      return lose(peer, "takes no messages");
    }
    if (kind == ToRank::kStop) {
      return;
    }
  }
}

void RankRelay::receive(Peer& peer) {
  RingMessage message;
  Clock::time_point until = Clock::time_point::max();
  while (!abort_.raised() && Clock::now() < until) {
    switch (peer.link.receive(message, Clock::now() + kRelayTurn)) {
      case RankLink::Received::kMessage:
        if (!take(peer, message)) {
          return lose(peer, "has sent an invalid message");
        }
        break;
      case RankLink::Received::kClosed:
        return peer.stopped.load() ? void() : lose(peer, "has closed the connection");
      case RankLink::Received::kDamaged:
        return lose(peer, "has sent a damaged message");
      case RankLink::Received::kNothing:
        break;
    }
    if (peer.stopped.load() && until == Clock::time_point::max()) {
      until = Clock::now() + kGoodbye;
    }
  }
}

bool RankRelay::take(Peer& peer, const RingMessage& message) {
  if (message.kind == static_cast<uint32_t>(LinkMessage::kReport)) {
    return take_report(message.bytes, peer.state);
  }
  switch (static_cast<FromRank>(message.kind)) {
    case FromRank::kForwardDone: {
      int64_t step = 0;
      if (message.bytes.size() != sizeof step) {
        return false;
      }
      std::memcpy(&step, message.bytes.data(), sizeof step);
      peer.state.forward_done.store(step);
      return true;
    }
    case FromRank::kDigest:
      if (message.bytes.size() != sizeof(StepDigest)) {
        return false;
      }
      peer.answers.write(message.kind, message.bytes);
      return true;
    case FromRank::kOutput:
      if (message.bytes.size() < sizeof(ExecutorStats)) {
        return false;
      }
      [[fallthrough]];
    case FromRank::kReady:
    case FromRank::kStartFailed:
    case FromRank::kReply:
      peer.answers.write(message.kind, message.bytes);
      return true;
  }
  return false;
}

// A connection that ends has a reason, which soon arrives through the watch of aborts.
void RankRelay::lose(const Peer& peer, const char* why) {
  const Clock::time_point until = Clock::now() + kRelayReasonTime;
  while (!abort_.raised() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (abort_.raise(peer.rank, AbortPhase::kConnectionLost)) {
    WR_LOG_ERROR("rank {} {}", peer.rank, why);
  }
}

}  // namespace warprow
