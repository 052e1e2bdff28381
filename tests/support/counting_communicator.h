// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace warprow::test {

// How often operations of a communicator were enqueued.
struct CommCounts {
  int64_t all_reduces = 0;
  int64_t all_gathers = 0;
  int64_t exchanges = 0;
  int64_t sends = 0;
  int64_t receives = 0;
  int64_t others = 0;
  bool operator==(const CommCounts&) const = default;
  CommCounts operator-(const CommCounts& before) const {
    return {all_reduces - before.all_reduces,
            all_gathers - before.all_gathers,
            exchanges - before.exchanges,
            sends - before.sends,
            receives - before.receives,
            others - before.others};
  }
};

// Passes every operation to another communicator and counts it.
class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->place()), inner_(std::move(inner)) {}

  [[nodiscard]] const CommCounts& counts() const { return counts_; }

  void all_reduce(Stream& stream, View<float, 2> values) override {
    ++counts_.all_reduces;
    inner_->all_reduce(stream, values);
  }
  void all_gather(Stream& stream, const std::byte* mine, std::byte* all, size_t bytes) override {
    ++counts_.all_gathers;
    inner_->all_gather(stream, mine, all, bytes);
  }
  void broadcast(Stream& stream, std::byte* data, size_t bytes, int32_t root) override {
    ++counts_.others;
    inner_->broadcast(stream, data, bytes, root);
  }
  void exchange_columns(Stream& stream, View<const float, 2> mine, View<float, 2> all) override {
    ++counts_.exchanges;
    inner_->exchange_columns(stream, mine, all);
  }
  void send(Stream& stream, const std::byte* data, size_t bytes, int32_t to) override {
    ++counts_.sends;
    inner_->send(stream, data, bytes, to);
  }
  void receive(Stream& stream, std::byte* data, size_t bytes, int32_t from) override {
    ++counts_.receives;
    inner_->receive(stream, data, bytes, from);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  CommCounts counts_;
};

}  // namespace warprow::test
