// SPDX-License-Identifier: Apache-2.0
#include "comm/cpu/tcp_communicator.h"

#include "base/math.h"
#include "comm/cpu/cpu_communicator.h"
#include "comm/cpu/rank_sum.h"
#include "comm/tcp/outbox.h"
#include "comm/tcp/transfers.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

namespace warprow {
namespace cpu {
namespace {

// Up to this size every rank sums everything; above, each sums a share and sends it to the others. With two ranks shares
// would send as many bytes and wait once more.
constexpr size_t kMostWholeTcpSum = 16 << 10;  // values
// A larger sum goes in chunks, which bound the memory for what arrives.
constexpr size_t kSumChunk = 1 << 20;  // values

// What arrives of a sum from each rank: all values of a small one, or of a chunk, or a share of a chunk.
size_t values_from_rank(int32_t size) {
  return size <= 2 ? kSumChunk
                   : std::max(kMostWholeTcpSum, ceil_div(kSumChunk, static_cast<size_t>(size)));
}

class TcpCommunicator final : public CpuCommunicator {
 public:
  TcpCommunicator(TcpMesh mesh, AbortFlag& abort, size_t outbox_bytes)
      : CpuCommunicator(mesh.place, abort),
        received_(outbox_bytes > 0
                      ? 0
                      : static_cast<size_t>(mesh.place.size) * values_from_rank(mesh.place.size)),
        transfers_(std::move(mesh), abort) {
    if (outbox_bytes > 0) {
      outbox_.emplace(transfers_.mesh(), abort, outbox_bytes);
    }
    for (int32_t step = 1; step < place().size; ++step) {
      peers_.push_back((place().rank + step) % place().size);
    }
  }

 protected:
  void sum_now(ComputePool& pool, std::span<float> values) override {
    const bool whole = place().size <= 2 || values.size() <= kMostWholeTcpSum;
    for (size_t at = 0; at < values.size(); at += kSumChunk) {
      const auto chunk = values.subspan(at, std::min(kSumChunk, values.size() - at));
      if (!(whole ? sum_whole(pool, chunk) : sum_by_shares(pool, chunk))) {
        return;
      }
    }
  }

  void gather_now(ComputePool& /*pool*/, std::byte* all, size_t bytes) override {
    for (const int32_t peer : peers_) {
      transfers_.send(peer, {all + static_cast<size_t>(place().rank) * bytes, bytes});
      transfers_.receive(peer, {all + static_cast<size_t>(peer) * bytes, bytes});
    }
    run();
  }

  void broadcast_now(ComputePool& /*pool*/, std::span<std::byte> data, int32_t root) override {
    if (place().rank != root) {
      transfers_.receive(root, {data.data(), data.size()});
    } else {
      for (const int32_t peer : peers_) {
        transfers_.send(peer, {data.data(), data.size()});
      }
    }
    run();
  }

  void exchange_columns_now(ComputePool& /*pool*/, const ColumnExchange& exchange) override {
    for (const int32_t peer : peers_) {
      const View<const float, 2> out = exchange.outgoing(peer);
      const View<float, 2> in = exchange.incoming(peer);
      transfers_.send(peer,
                      {reinterpret_cast<const std::byte*>(out.data),
                       static_cast<size_t>(out.shape[1]) * sizeof(float),
                       out.shape[0],
                       out.stride[0] * int64_t{sizeof(float)}});
      transfers_.receive(peer,
                         {reinterpret_cast<std::byte*>(in.data),
                          static_cast<size_t>(in.shape[1]) * sizeof(float),
                          in.shape[0],
                          in.stride[0] * int64_t{sizeof(float)}});
    }
    run();
  }

  void send_now(ComputePool& /*pool*/, std::span<const std::byte> data, int32_t to) override {
    if (outbox_) {
      if (!outbox_->put(to, data)) {
        end(outbox_->lost_rank());
      }
      return;
    }
    transfers_.send(to, {data.data(), data.size()});
    run();
  }

  void receive_now(ComputePool& /*pool*/, std::span<std::byte> data, int32_t from) override {
    transfers_.receive(from, {data.data(), data.size()});
    run();
  }

 private:
  static ByteRows<const std::byte> outgoing(std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    return {bytes.data(), bytes.size()};
  }
  static ByteRows<std::byte> incoming(std::span<float> values) {
    const auto bytes = std::as_writable_bytes(values);
    return {bytes.data(), bytes.size()};
  }
  // Where n values of a rank arrive.
  std::span<float> received(int32_t rank, size_t n) {
    return std::span(received_).subspan(static_cast<size_t>(rank) * values_from_rank(place().size),
                                        n);
  }

  bool sum_whole(ComputePool& pool, std::span<float> values) {
    for (const int32_t peer : peers_) {
      transfers_.send(peer, outgoing(values));
      transfers_.receive(peer, incoming(received(peer, values.size())));
    }
    if (!run()) {
      return false;
    }
    sum_received(pool, values);
    return true;
  }

  bool sum_by_shares(ComputePool& pool, std::span<float> chunk) {
    const auto share_of = [&](int32_t rank) {
      const Share share = place().share_of(rank, static_cast<int64_t>(chunk.size()));
      return chunk.subspan(static_cast<size_t>(share.begin), static_cast<size_t>(share.size()));
    };
    const std::span<float> own = share_of(place().rank);
    for (const int32_t peer : peers_) {
      transfers_.send(peer, outgoing(share_of(peer)));
      transfers_.receive(peer, incoming(received(peer, own.size())));
    }
    if (!run()) {
      return false;
    }
    sum_received(pool, own);
    for (const int32_t peer : peers_) {
      transfers_.send(peer, outgoing(own));
      transfers_.receive(peer, incoming(share_of(peer)));
    }
    return run();
  }

  // own = the sum of this rank's values and those that arrived.
  void sum_received(ComputePool& pool, std::span<float> own) {
    RankValues values;
    for (int32_t rank = 0; rank < place().size; ++rank) {
      values[static_cast<size_t>(rank)] =
          rank == place().rank ? own.data() : received(rank, own.size()).data();
    }
    sum_in_rank_order(pool, values, place().size, own.data(), static_cast<int64_t>(own.size()));
  }

  bool run() {
    const bool done = transfers_.run();
    if (!done) {
      end(transfers_.lost_rank());
    }
    return done;
  }

  // A connection that closes has a reason, which soon arrives through the host group's watch. Without one, the
  // connection alone was lost.
  void end(std::optional<int32_t> lost_rank) {
    for (int32_t i = 0; i < 60 && !abort_.raised(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (lost_rank) {
      abort_.raise(*lost_rank, AbortPhase::kConnectionLost);
    }
  }

  std::vector<float> received_;  // [size, values_from_rank]
  Transfers transfers_;
  std::optional<Outbox> outbox_;  // of sends
  std::vector<int32_t> peers_;    // the other ranks, the next first
};

}  // namespace
}  // namespace cpu

size_t tcp_communicator_bytes(int32_t size) {
  return static_cast<size_t>(size) * cpu::values_from_rank(size) * sizeof(float);
}

std::unique_ptr<Communicator> make_tcp_communicator(TcpHostGroup& group,
                                                    const std::vector<int32_t>& members) {
  return make_tcp_communicator(group.connect(members), group.abort());
}

std::unique_ptr<Communicator> make_tcp_communicator(TcpMesh mesh,
                                                    AbortFlag& abort,
                                                    size_t outbox_bytes) {
  return std::make_unique<cpu::TcpCommunicator>(std::move(mesh), abort, outbox_bytes);
}

}  // namespace warprow
