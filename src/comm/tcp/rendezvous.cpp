// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/rendezvous.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/host_group.h"
#include "comm/tcp/hello.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace warprow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRendezvousRetry{100};
// How long rank 0 takes to tell the others that it gives up.
constexpr milliseconds kLastWords{300};

// Rank 0's answer to a hello begins with it. Then: why the rank is refused, or "" and the addresses of all ranks.
constexpr uint64_t kAnswer = 0x6f726b6e61727077;

void answer(const Socket& socket, const std::string& why_not, const Patience& patience) {
  if (socket.valid() && send_value(socket, kAnswer, patience) == SocketResult::kDone) {
    send_string(socket, why_not, patience);
  }
}

// Rank 0: takes connections until all ranks have come.
class Gathering {
 public:
  Gathering(const Rendezvous& where, const AbortFlag& abort, milliseconds patience)
      : where_(where), abort_(abort), patience_(patience) {
    found_.sockets.resize(static_cast<size_t>(where.place.size));
    found_.addresses.resize(static_cast<size_t>(where.place.size));
  }

  FoundRanks run(Listener listener) {
    where_.port = listener.port();
    const Patience patience{std::chrono::steady_clock::now() + patience_, &abort_};
    while (!missing().empty()) {
      Socket socket = listener.accept(patience);
      if (!socket.valid()) {
        throw_if_aborted(0, abort_);
        give_up(fmt::format("{} of {} did not come within {}{}",
                            list_ranks(missing()),
                            where_.place.size,
                            patience_,
                            stranger_));
      }
      take(std::move(socket), patience);
    }
    for (const Socket& socket : found_.sockets) {
      answer(socket, "", patience);
      for (const std::string& address : found_.addresses) {
        if (socket.valid() && send_string(socket, address, patience) != SocketResult::kDone) {
          throw_if_aborted(0, abort_);
          give_up(fmt::format("the connection to the rank at {} was lost", peer_address(socket)));
        }
      }
    }
    return std::move(found_);
  }

 private:
  [[nodiscard]] std::vector<int32_t> missing() const {
    std::vector<int32_t> ranks;
    for (int32_t rank = 1; rank < where_.place.size; ++rank) {
      if (!found_.sockets[static_cast<size_t>(rank)].valid()) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  void take(Socket socket, const Patience& patience) {
    const ReceivedHello received = receive_hello(socket, patience);
    if (!received.hello || received.hello->run_id != where_.run_id) {
      send_away(
          socket,
          received.hello
              ? fmt::format("it is of run '{}', not of '{}'", received.hello->run_id, where_.run_id)
              : received.why_not,
          patience);
      return;
    }
    const std::string why_not = objection(received.hello->place);
    if (!why_not.empty()) {
      answer(socket, why_not, patience);
      give_up(why_not);
    }
    const auto rank = static_cast<size_t>(received.hello->place.rank);
    found_.addresses[rank] = peer_address(socket);
    found_.sockets[rank] = std::move(socket);
  }

  // A connection that is no rank of this run is refused, and the run goes on.
  void send_away(const Socket& socket, const std::string& why, const Patience& patience) {
    stranger_ = fmt::format("; {} was refused: {}", peer_address(socket), why);
    WR_LOG_WARN("rank 0 at port {} refused {}: {}", where_.port, peer_address(socket), why);
    answer(socket, why, patience);
  }

  // Why a rank of this run does not fit; "" if it does.
  [[nodiscard]] std::string objection(GroupPlace place) const {
    const int32_t size = where_.place.size;
    if (place.size != size) {
      return fmt::format(
          "rank {} was started for {} ranks and rank 0 for {}", place.rank, place.size, size);
    }
    if (place.rank <= 0 || place.rank >= size) {
      return fmt::format("there is another rank {} of {}", place.rank, size);
    }
    const auto at = static_cast<size_t>(place.rank);
    if (found_.sockets[at].valid()) {
      return fmt::format(
          "rank {} is there twice, the first at {}", place.rank, found_.addresses[at]);
    }
    return "";
  }

  // Tells the ranks that have come, and fails.
  [[noreturn]] void give_up(const std::string& why) {
    const Patience brief{std::chrono::steady_clock::now() + kLastWords, &abort_};
    for (const Socket& socket : found_.sockets) {
      answer(socket, why, brief);
    }
    throw StartupError(ErrorCode::kBusy, fmt::format("rank 0 at port {}: {}", where_.port, why));
  }

  Rendezvous where_;
  const AbortFlag& abort_;
  milliseconds patience_;
  FoundRanks found_;
  std::string stranger_;  // the last connection that was sent away, for a message
};

// The other ranks: tries until rank 0 answers.
class Search {
 public:
  Search(const Rendezvous& where, const AbortFlag& abort, milliseconds patience)
      : where_(where), abort_(abort), patience_(patience) {}

  FoundRanks run() {
    const Patience patience{std::chrono::steady_clock::now() + patience_, &abort_};
    for (; !patience.over(); std::this_thread::sleep_for(kRendezvousRetry)) {
      Socket socket = connect_once(where_.address, where_.port, patience, why_not_);
      if (socket.valid() && was_answered(socket, patience)) {
        FoundRanks found = read_answer(socket, patience);
        found.sockets[0] = std::move(socket);
        return found;
      }
    }
    throw_if_aborted(where_.place.rank, abort_);
    fail(fmt::format("{} of {} found no rank 0 at {}:{} within {}: {}",
                     list_ranks({where_.place.rank}),
                     where_.place.size,
                     where_.address,
                     where_.port,
                     patience_,
                     why_not_));
  }

 private:
  // The listener may be an earlier run that is just ending, so a connection that only closes is tried again.
  bool was_answered(const Socket& socket, const Patience& patience) {
    uint64_t mark = 0;
    SocketResult result =
        send_hello(socket, {.mesh = 0, .place = where_.place, .run_id = where_.run_id}, patience);
    if (result == SocketResult::kDone) {
      result = receive_value(socket, mark, patience);
    }
    why_not_ = result == SocketResult::kGaveUp   ? "it has not found all ranks"
               : result == SocketResult::kClosed ? "it closed the connection"
                                                 : "what listens there is not a rank of warprow";
    return result == SocketResult::kDone && mark == kAnswer;
  }

  FoundRanks read_answer(const Socket& socket, const Patience& patience) const {
    FoundRanks found;
    found.sockets.resize(static_cast<size_t>(where_.place.size));
    found.addresses.resize(static_cast<size_t>(where_.place.size));
    std::string refusal;
    read(socket, refusal, patience);
    if (!refusal.empty()) {
      fail(fmt::format("rank {} was refused by rank 0 at {}:{}: {}",
                       where_.place.rank,
                       where_.address,
                       where_.port,
                       refusal));
    }
    for (std::string& address : found.addresses) {
      read(socket, address, patience);
    }
    // Rank 0 sees ranks of its own host at a loopback address; from elsewhere they are where rank 0 is.
    found.addresses[0] = peer_address(socket);
    for (std::string& address : found.addresses) {
      address = is_loopback(address) ? found.addresses[0] : address;
    }
    return found;
  }

  void read(const Socket& socket, std::string& text, const Patience& patience) const {
    if (receive_string(socket, text, patience) != SocketResult::kDone) {
      throw_if_aborted(where_.place.rank, abort_);
      fail(fmt::format("rank {}: rank 0 at {}:{} ended while it answered",
                       where_.place.rank,
                       where_.address,
                       where_.port));
    }
  }

  [[noreturn]] static void fail(const std::string& why) {
    throw StartupError(ErrorCode::kBusy, why);
  }

  const Rendezvous& where_;
  const AbortFlag& abort_;
  milliseconds patience_;
  std::string why_not_ = "there was no time to try";
};

}  // namespace

bool for_one_host(const std::string& address) {
  return address == "localhost" || address.starts_with("127.");
}

FoundRanks find_ranks(const Rendezvous& where,
                      const AbortFlag& abort,
                      milliseconds patience,
                      std::optional<Listener> listener) {
  if (where.run_id.size() > kMostRunId) {
    throw StartupError(
        ErrorCode::kInvalidArgument,
        fmt::format("the run id has {} characters, at most {}", where.run_id.size(), kMostRunId));
  }
  if (where.place.rank != 0) {
    return Search(where, abort, patience).run();
  }
  if (where.place.size == 1) {
    return {std::vector<Socket>(1), {where.address}};
  }
  if (!listener) {
    listener.emplace(for_one_host(where.address), where.port);
  }
  return Gathering(where, abort, patience).run(std::move(*listener));
}

}  // namespace warprow
