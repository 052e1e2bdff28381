// SPDX-License-Identifier: Apache-2.0
#include "comm/cpu/shared_memory_communicator.h"

#include "base/check.h"
#include "base/math.h"
#include "comm/cpu/cpu_communicator.h"
#include "comm/cpu/pair_channel.h"
#include "comm/cpu/rank_sum.h"
#include "comm/shared_slots.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace warprow {
namespace cpu {
namespace {

// Up to this size every rank sums everything; above, each sums a share, which the others then copy. With two ranks shares
// would move as many bytes between cores and wait once more.
constexpr size_t kMostWholeSharedSum = 2048;  // values

// Shares of a sum begin at a cache line.
constexpr int64_t kShareUnit = 16;  // values

class SharedMemoryCommunicator final : public CpuCommunicator {
 public:
  SharedMemoryCommunicator(GroupPlace place, std::byte* memory, AbortFlag& abort, SlotSizes sizes)
      : CpuCommunicator(place, abort),
        slots_(memory, place, sizes.collective_bytes),
        pair_bytes_(sizes.pair_bytes),
        waiting_(abort) {
    std::byte* channels = memory + SharedSlots::bytes(place.size, sizes.collective_bytes);
    for (int32_t peer = 0; peer < place.size; ++peer) {
      const auto channel = [&](int32_t from, int32_t to) {
        const size_t nth =
            static_cast<size_t>(from) * static_cast<size_t>(place.size) + static_cast<size_t>(to);
        return PairChannel(channels + nth * PairChannel::bytes(pair_bytes_, sizes.num_pair_slots),
                           pair_bytes_,
                           sizes.num_pair_slots);
      };
      to_.push_back(channel(place.rank, peer));
      from_.push_back(channel(peer, place.rank));
    }
    for (int32_t step = 1; step < place.size; ++step) {
      peers_.push_back((place.rank + step) % place.size);
    }
  }

 protected:
  void sum_now(ComputePool& pool, std::span<float> values) override {
    const size_t most = slots_.slot_bytes() / sizeof(float);
    const bool whole = place().size <= 2 || values.size() <= kMostWholeSharedSum;
    for (size_t at = 0; at < values.size(); at += most) {
      const auto chunk = values.subspan(at, std::min(most, values.size() - at));
      if (!(whole ? sum_whole(pool, chunk) : sum_by_shares(pool, chunk))) {
        return;
      }
    }
  }

  void gather_now(ComputePool& pool, std::byte* all, size_t bytes) override {
    const size_t most = slots_.slot_bytes();
    for (size_t at = 0; at < bytes; at += most) {
      const size_t n = std::min(most, bytes - at);
      slots_.turn();
      if (!slots_.claim(waiting_)) {
        return;
      }
      copy_bytes(pool, slots_.slot(me()), all + static_cast<size_t>(me()) * bytes + at, n);
      slots_.publish();
      for (const int32_t peer : peers_) {
        if (!slots_.wait_for(peer, waiting_)) {
          return;
        }
        copy_bytes(pool, all + static_cast<size_t>(peer) * bytes + at, slots_.slot(peer), n);
      }
    }
  }

  void broadcast_now(ComputePool& pool, std::span<std::byte> data, int32_t root) override {
    const size_t most = slots_.slot_bytes();
    for (size_t at = 0; at < data.size(); at += most) {
      const auto chunk = data.subspan(at, std::min(most, data.size() - at));
      slots_.turn();
      if (me() != root) {
        slots_.publish();
        if (!slots_.wait_for(root, waiting_)) {
          return;
        }
        copy_bytes(pool, chunk.data(), slots_.slot(root), chunk.size());
        continue;
      }
      if (!slots_.claim(waiting_)) {
        return;
      }
      copy_bytes(pool, slots_.slot(root), chunk.data(), chunk.size());
      slots_.publish();
    }
  }

  // A slot has a part for each rank that is written to.
  void exchange_columns_now(ComputePool& pool, const ColumnExchange& exchange) override {
    const int64_t most = static_cast<int64_t>(slots_.slot_bytes() / sizeof(float)) / place().size;
    const int64_t num_elements_most = exchange.largest_block();
    for (int64_t at = 0; at < num_elements_most; at += most) {
      const auto chunk_of = [&](View<const float, 2> block) {
        return Share{std::min(at, num_elements(block)), std::min(at + most, num_elements(block))};
      };
      slots_.turn();
      if (!slots_.claim(waiting_)) {
        return;
      }
      for (const int32_t peer : peers_) {
        const View<const float, 2> block = exchange.outgoing(peer);
        pack(pool, block, chunk_of(block), part(me(), peer, most));
      }
      slots_.publish();
      for (const int32_t peer : peers_) {
        if (!slots_.wait_for(peer, waiting_)) {
          return;
        }
        const View<float, 2> block = exchange.incoming(peer);
        unpack(pool, part(peer, me(), most), chunk_of(block), block);
      }
    }
  }

  void send_now(ComputePool& pool, std::span<const std::byte> data, int32_t to) override {
    PairChannel& channel = to_[static_cast<size_t>(to)];
    for (size_t at = 0; at < data.size(); at += pair_bytes_) {
      std::byte* slot = channel.slot_to_fill(waiting_);
      if (slot == nullptr) {
        return;
      }
      copy_bytes(pool, slot, data.data() + at, std::min(pair_bytes_, data.size() - at));
      channel.mark_sent();
    }
  }

  void receive_now(ComputePool& pool, std::span<std::byte> data, int32_t from) override {
    PairChannel& channel = from_[static_cast<size_t>(from)];
    for (size_t at = 0; at < data.size(); at += pair_bytes_) {
      const std::byte* slot = channel.slot_to_take(waiting_);
      if (slot == nullptr) {
        return;
      }
      copy_bytes(pool, data.data() + at, slot, std::min(pair_bytes_, data.size() - at));
      channel.mark_taken();
    }
  }

 private:
  [[nodiscard]] int32_t me() const { return place().rank; }
  [[nodiscard]] float* values_of(int32_t rank) const {
    return reinterpret_cast<float*>(slots_.slot(rank));
  }
  // In the slot of rank `from`: the part for rank `to`.
  [[nodiscard]] float* part(int32_t from, int32_t to, int64_t part_size) const {
    return values_of(from) + to * part_size;
  }

  bool sum_whole(ComputePool& pool, std::span<float> chunk) {
    slots_.turn();
    if (!slots_.claim(waiting_)) {
      return false;
    }
    copy_values(pool, values_of(me()), chunk);
    slots_.publish();
    if (!slots_.wait_for_all(waiting_)) {
      return false;
    }
    sum_range(pool, chunk, {0, static_cast<int64_t>(chunk.size())}, chunk.data());
    return true;
  }

  // Rank r needs only share r of the others' values. It leaves the sum in its own slot at that share, which no other rank
  // reads before.
  bool sum_by_shares(ComputePool& pool, std::span<float> chunk) {
    const auto n = static_cast<int64_t>(chunk.size());
    const auto share_of = [&](int32_t rank) {
      const Share units = place().share_of(rank, ceil_div(n, kShareUnit));
      return Share{std::min(units.begin * kShareUnit, n), std::min(units.end * kShareUnit, n)};
    };
    const auto part_of = [&](Share share) {
      return chunk.subspan(static_cast<size_t>(share.begin), static_cast<size_t>(share.size()));
    };
    const Share own = share_of(me());
    slots_.turn();
    if (!slots_.claim(waiting_)) {
      return false;
    }
    copy_values(pool, values_of(me()), part_of({0, own.begin}));
    copy_values(pool, values_of(me()) + own.end, part_of({own.end, n}));
    slots_.publish();
    if (!slots_.wait_for_all(waiting_)) {
      return false;
    }
    sum_range(pool, chunk, own, values_of(me()));
    slots_.publish();
    std::memcpy(part_of(own).data(), values_of(me()) + own.begin, part_of(own).size_bytes());
    for (const int32_t peer : peers_) {
      if (!slots_.wait_for(peer, waiting_)) {
        return false;
      }
      const Share share = share_of(peer);
      copy_bytes(pool,
                 reinterpret_cast<std::byte*>(part_of(share).data()),
                 reinterpret_cast<const std::byte*>(values_of(peer) + share.begin),
                 part_of(share).size_bytes());
    }
    return true;
  }

  // to[range] = the sum over ranks; this rank's values are in `chunk`, the others' in their slots.
  void sum_range(ComputePool& pool, std::span<float> chunk, Share range, float* to) const {
    RankValues values;
    for (int32_t rank = 0; rank < place().size; ++rank) {
      values[static_cast<size_t>(rank)] =
          (rank == me() ? chunk.data() : values_of(rank)) + range.begin;
    }
    sum_in_rank_order(pool, values, place().size, to + range.begin, range.size());
  }

  static void copy_values(ComputePool& pool, float* to, std::span<const float> from) {
    copy_bytes(pool,
               reinterpret_cast<std::byte*>(to),
               reinterpret_cast<const std::byte*>(from.data()),
               from.size_bytes());
  }

  SharedSlots slots_;
  size_t pair_bytes_;
  std::vector<PairChannel> to_;    // by rank; this rank's own is not used
  std::vector<PairChannel> from_;  // by rank
  std::vector<int32_t> peers_;     // the other ranks, the next first
  Waiting waiting_;
};

}  // namespace
}  // namespace cpu

size_t shared_memory_communicator_bytes(int32_t size, SlotSizes sizes) {
  const auto ranks = static_cast<size_t>(size);
  return SharedSlots::bytes(size, sizes.collective_bytes) +
         ranks * ranks * cpu::PairChannel::bytes(sizes.pair_bytes, sizes.num_pair_slots);
}

SlotSizes stage_slots(int32_t num_stages) {
  SlotSizes sizes;
  sizes.collective_bytes = SharedSlots::kAlignment;
  const size_t slots_of_step = ceil_div(kMostResultBytes, sizes.pair_bytes);
  sizes.num_pair_slots =
      static_cast<uint32_t>(num_stages + 1) * static_cast<uint32_t>(slots_of_step);
  return sizes;
}

size_t stage_incoming_bytes(const GroupPlace& place) {
  const SlotSizes sizes = stage_slots(place.size);
  const size_t channel = cpu::PairChannel::bytes(sizes.pair_bytes, sizes.num_pair_slots);
  const bool has_residual = place.rank > 0;
  const bool has_results = place.rank < place.size - 1;
  return channel * (static_cast<size_t>(has_residual) + static_cast<size_t>(has_results));
}

std::unique_ptr<Communicator> make_shared_memory_communicator(GroupPlace place,
                                                              std::byte* memory,
                                                              AbortFlag& abort,
                                                              SlotSizes sizes) {
  WR_CHECK(sizes.pair_bytes > 0 && sizes.pair_bytes % SharedSlots::kAlignment == 0,
           "slots of {} bytes",
           sizes.pair_bytes);
  WR_CHECK_GT(sizes.num_pair_slots, 0);
  return std::make_unique<cpu::SharedMemoryCommunicator>(place, memory, abort, sizes);
}

}  // namespace warprow
