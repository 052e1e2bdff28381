// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/communicator.h"
#include "comm/cpu/column_exchange.h"
#include "device/cpu/compute_pool.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace warprow::cpu {

// A communicator of CPU ranks: checks the arguments of an operation and enqueues it on a CPU stream. A transport does
// the operation when the stream runs it.
//
// Thread: the enqueuing thread calls the operations of Communicator, the stream's thread those below.
class CpuCommunicator : public Communicator {
 public:
  void all_reduce(Stream& stream, View<float, 2> values) final;
  void all_gather(Stream& stream, const std::byte* mine, std::byte* all, size_t bytes) final;
  void broadcast(Stream& stream, std::byte* data, size_t bytes, int32_t root) final;
  void exchange_columns(Stream& stream, View<const float, 2> mine, View<float, 2> all) final;
  void send(Stream& stream, const std::byte* data, size_t bytes, int32_t to) final;
  void receive(Stream& stream, std::byte* data, size_t bytes, int32_t from) final;

 protected:
  CpuCommunicator(GroupPlace place, AbortFlag& abort);

  // What the stream runs, unless the group was aborted. They return early if it is aborted meanwhile.
  virtual void sum_now(ComputePool& pool, std::span<float> values) = 0;
  // This rank's bytes are in `all` already.
  virtual void gather_now(ComputePool& pool, std::byte* all, size_t bytes) = 0;
  virtual void broadcast_now(ComputePool& pool, std::span<std::byte> data, int32_t root) = 0;
  // This rank's own columns of its own rows are in `all` already.
  virtual void exchange_columns_now(ComputePool& pool, const ColumnExchange& exchange) = 0;
  virtual void send_now(ComputePool& pool, std::span<const std::byte> data, int32_t to) = 0;
  virtual void receive_now(ComputePool& pool, std::span<std::byte> data, int32_t from) = 0;

  AbortFlag& abort_;

 private:
  template <typename F>
  void enqueue(Stream& stream, const char* name, const F& f);
  void check_peer(int32_t rank) const;
};

}  // namespace warprow::cpu
