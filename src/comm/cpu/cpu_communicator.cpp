// SPDX-License-Identifier: Apache-2.0
#include "comm/cpu/cpu_communicator.h"

#include "base/check.h"
#include "comm/cpu/rank_sum.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

#include <cstring>

namespace warprow::cpu {

CpuCommunicator::CpuCommunicator(GroupPlace place, AbortFlag& abort)
    : Communicator(place), abort_(abort) {
  WR_CHECK(place.rank >= 0 && place.rank < place.size && place.size <= kMaxCpuRanks,
           "rank {} of {}",
           place.rank,
           place.size);
}

template <typename F>
void CpuCommunicator::enqueue(Stream& stream, const char* name, const F& f) {
  if (stream.discards()) {
    return;
  }
  WR_CHECK(stream.device().facts().kind == DeviceKind::kCpu, "{} of CPU ranks on a GPU", name);
  as_cpu(stream).launch(name, [abort = &abort_, f](ComputePool& pool) {
    if (!abort->raised()) {
      f(pool);
    }
  });
}

void CpuCommunicator::check_peer(int32_t rank) const {
  WR_CHECK(rank >= 0 && rank < place().size && rank != place().rank,
           "rank {} of {} talks to rank {}",
           place().rank,
           place().size,
           rank);
}

void CpuCommunicator::all_reduce(Stream& stream, View<float, 2> values) {
  WR_CHECK(values.shape[0] <= 1 || values.stride[0] == values.shape[1],
           "rows of {} values are {} apart",
           values.shape[1],
           values.stride[0]);
  const auto n = static_cast<size_t>(values.shape[0] * values.shape[1]);
  enqueue(stream, "all_reduce", [this, values, n](ComputePool& pool) {
    sum_now(pool, {values.data, n});
  });
}

void CpuCommunicator::all_gather(Stream& stream,
                                 const std::byte* mine,
                                 std::byte* all,
                                 size_t bytes) {
  enqueue(stream, "all_gather", [this, mine, all, bytes](ComputePool& pool) {
    std::byte* place_in_all = all + static_cast<size_t>(place().rank) * bytes;
    if (mine != place_in_all) {
      copy_bytes(pool, place_in_all, mine, bytes);
    }
    gather_now(pool, all, bytes);
  });
}

void CpuCommunicator::broadcast(Stream& stream, std::byte* data, size_t bytes, int32_t root) {
  WR_CHECK(root >= 0 && root < place().size, "root {} of {}", root, place().size);
  enqueue(stream, "broadcast", [this, data, bytes, root](ComputePool& pool) {
    broadcast_now(pool, {data, bytes}, root);
  });
}

void CpuCommunicator::exchange_columns(Stream& stream,
                                       View<const float, 2> mine,
                                       View<float, 2> all) {
  WR_CHECK_EQ(all.shape[0], place().share(mine.shape[0]).size());
  WR_CHECK_LE(all.shape[1], place().size * mine.shape[1]);
  enqueue(stream, "exchange_columns", [this, mine, all](ComputePool& pool) {
    const ColumnExchange exchange{place(), mine, all};
    const View<const float, 2> own = exchange.outgoing(place().rank);
    const View<float, 2> own_place = exchange.incoming(place().rank);
    pool.parallel_for(own.shape[0], 1, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(
            own_place.row(row), own.row(row), static_cast<size_t>(own.shape[1]) * sizeof(float));
      }
    });
    exchange_columns_now(pool, exchange);
  });
}

void CpuCommunicator::send(Stream& stream, const std::byte* data, size_t bytes, int32_t to) {
  check_peer(to);
  enqueue(stream, "send", [this, data, bytes, to](ComputePool& pool) {
    send_now(pool, {data, bytes}, to);
  });
}

void CpuCommunicator::receive(Stream& stream, std::byte* data, size_t bytes, int32_t from) {
  check_peer(from);
  enqueue(stream, "receive", [this, data, bytes, from](ComputePool& pool) {
    receive_now(pool, {data, bytes}, from);
  });
}

}  // namespace warprow::cpu
