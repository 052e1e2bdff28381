// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/peer_communicator.h"

#include "base/check.h"
#include "comm/cuda/peer_kernels.h"
#include "device/device.h"

#include <algorithm>

namespace warprow::cuda {
namespace {

template <typename T>
PeerRows rows_of(T* at, int64_t rows, int64_t row_bytes, int64_t stride, int32_t peer) {
  return {reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(at)),
          row_bytes,
          stride,
          rows * row_bytes,
          peer};
}

PeerRows bytes_of(const std::byte* at, size_t bytes, int32_t peer) {
  const auto n = static_cast<int64_t>(bytes);
  return rows_of(at, 1, n, n, peer);
}

class PeerCommunicator final : public Communicator {
 public:
  explicit PeerCommunicator(const PeerGroup& group)
      : Communicator({group.rank, group.size}), group_(group) {
    WR_CHECK(group.rank >= 0 && group.rank < group.size && group.size <= kMaxPeers,
             "rank {} of {}",
             group.rank,
             group.size);
  }

  void all_reduce(Stream& stream, View<float, 2> values) override {
    WR_CHECK(values.shape[0] <= 1 || values.stride[0] == values.shape[1],
             "rows of {} values are {} apart",
             values.shape[1],
             values.stride[0]);
    if (runs(stream)) {
      sum_over_peers(stream, group_, {values.data, nullptr, values.shape[0] * values.shape[1]});
    }
  }

  void add_sum(Stream& stream,
               View<float, 2> product,
               View<float, 2> residual,
               const HalfNorm* next) override {
    for (const View<float, 2>& rows : {product, residual}) {
      WR_CHECK(rows.shape[0] <= 1 || rows.stride[0] == rows.shape[1], "rows have gaps");
    }
    if (runs(stream)) {
      sum_over_peers(stream,
                     group_,
                     {product.data,
                      residual.data,
                      product.shape[0] * product.shape[1],
                      static_cast<int32_t>(product.shape[1]),
                      next});
    }
  }

  void all_gather(Stream& stream, const std::byte* mine, std::byte* all, size_t bytes) override {
    PeerMoves moves;
    for_peers([&](int32_t peer) {
      moves.out[moves.num_out++] = bytes_of(mine, bytes, peer);
      moves.in[moves.num_in++] = bytes_of(all + static_cast<size_t>(peer) * bytes, bytes, peer);
    });
    std::byte* const place_in_all = all + static_cast<size_t>(group_.rank) * bytes;
    if (mine != place_in_all) {
      moves.own = bytes_of(mine, bytes, group_.rank);
      moves.own_to = bytes_of(place_in_all, bytes, group_.rank);
    }
    move(stream, moves);
  }

  void broadcast(Stream& stream, std::byte* data, size_t bytes, int32_t root) override {
    WR_CHECK(root >= 0 && root < group_.size, "root {} of {}", root, group_.size);
    PeerMoves moves;
    if (root != group_.rank) {
      moves.in[moves.num_in++] = bytes_of(data, bytes, root);
    } else {
      for_peers([&](int32_t peer) { moves.out[moves.num_out++] = bytes_of(data, bytes, peer); });
    }
    move(stream, moves);
  }

  void exchange_columns(Stream& stream, View<const float, 2> mine, View<float, 2> all) override {
    WR_CHECK_EQ(all.shape[0], place().share(mine.shape[0]).size());
    WR_CHECK_LE(all.shape[1], place().size * mine.shape[1]);
    constexpr int64_t kSize = sizeof(float);
    const auto columns_of = [&](int32_t rank) {
      return Share{std::min(rank * mine.shape[1], all.shape[1]),
                   std::min((rank + 1) * mine.shape[1], all.shape[1])};
    };
    const auto out_to = [&](int32_t rank) {
      const Share rows = place().share_of(rank, mine.shape[0]);
      return rows_of(mine.row(rows.begin),
                     rows.size(),
                     columns_of(group_.rank).size() * kSize,
                     mine.stride[0] * kSize,
                     rank);
    };
    const auto in_from = [&](int32_t rank) {
      const Share columns = columns_of(rank);
      return rows_of(all.data + columns.begin,
                     all.shape[0],
                     columns.size() * kSize,
                     all.stride[0] * kSize,
                     rank);
    };
    PeerMoves moves;
    for_peers([&](int32_t peer) {
      moves.out[moves.num_out++] = out_to(peer);
      moves.in[moves.num_in++] = in_from(peer);
    });
    moves.own = out_to(group_.rank);
    moves.own_to = in_from(group_.rank);
    move(stream, moves);
  }

  void send(Stream& stream, const std::byte* data, size_t bytes, int32_t to) override {
    check_peer(to);
    PeerMoves moves;
    moves.out[moves.num_out++] = bytes_of(data, bytes, to);
    move(stream, moves);
  }

  void receive(Stream& stream, std::byte* data, size_t bytes, int32_t from) override {
    check_peer(from);
    PeerMoves moves;
    moves.in[moves.num_in++] = bytes_of(data, bytes, from);
    move(stream, moves);
  }

 private:
  static bool runs(Stream& stream) {
    if (stream.discards()) {
      return false;
    }
    WR_CHECK(stream.device().facts().kind == DeviceKind::kCuda, "GPU ranks on a CPU");
    return true;
  }

  void move(Stream& stream, const PeerMoves& moves) {
    if (runs(stream)) {
      move_between_peers(stream, group_, moves);
    }
  }

  // The next rank first, so that ranks do not all write to the same one.
  template <typename F>
  void for_peers(const F& f) const {
    for (int32_t step = 1; step < group_.size; ++step) {
      f((group_.rank + step) % group_.size);
    }
  }

  void check_peer(int32_t rank) const {
    WR_CHECK(rank >= 0 && rank < group_.size && rank != group_.rank,
             "rank {} of {} talks to rank {}",
             group_.rank,
             group_.size,
             rank);
  }

  PeerGroup group_;
};

}  // namespace

std::unique_ptr<Communicator> make_peer_communicator(const PeerGroup& group) {
  return std::make_unique<PeerCommunicator>(group);
}

}  // namespace warprow::cuda
