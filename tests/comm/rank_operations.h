// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "device/device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace warprow::test {

enum class OperationKind : uint8_t {
  kAllReduce,
  kAllGather,
  kBroadcast,
  kExchangeColumns,
  kSendReceive,
  kCount
};

// One operation of a group; the same on all ranks. Values in and the values expected follow from `seed` alone.
struct Operation {
  OperationKind kind = OperationKind::kAllReduce;
  int64_t rows = 1;
  int64_t width = 1;    // exchange_columns: of a rank
  int64_t padding = 0;  // exchange_columns: columns of the last rank that are dropped
  int32_t from = 0;     // broadcast: the root
  int32_t to = 0;
  uint64_t seed = 0;
};

inline const char* name_of(OperationKind kind) {
  constexpr const char* kNames[] = {
      "all_reduce", "all_gather", "broadcast", "exchange_columns", "send_receive"};
  return kNames[static_cast<size_t>(kind)];
}

inline std::vector<float> random_values(uint64_t seed, int32_t rank, int64_t n) {
  // Cheap, with exponents that make the order of a sum visible.
  std::vector<float> values(static_cast<size_t>(n));
  uint64_t state =
      seed * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9ULL;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int32_t>(state >> 32)) *
            static_cast<float>(1 << ((state >> 24) % 20));
  }
  return values;
}

// What a rank has in and must get out: computed serially, sums in rank order.
struct Expectation {
  std::vector<float> in;
  std::vector<float> out;
};

inline Expectation expect(const Operation& op, GroupPlace place) {
  const int64_t n = op.rows * op.width;
  Expectation e;
  e.in = random_values(op.seed, place.rank, n);
  switch (op.kind) {
    case OperationKind::kAllReduce: {
      e.out = random_values(op.seed, 0, n);
      for (int32_t rank = 1; rank < place.size; ++rank) {
        const std::vector<float> values = random_values(op.seed, rank, n);
        for (size_t i = 0; i < values.size(); ++i) {
          e.out[i] += values[i];
        }
      }
      break;
    }
    case OperationKind::kAllGather:
      for (int32_t rank = 0; rank < place.size; ++rank) {
        const std::vector<float> values = random_values(op.seed, rank, n);
        e.out.insert(e.out.end(), values.begin(), values.end());
      }
      break;
    case OperationKind::kBroadcast:
      e.out = random_values(op.seed, op.from, n);
      break;
    case OperationKind::kExchangeColumns: {
      const int64_t whole = place.size * op.width - op.padding;
      const Share rows = place.share(op.rows);
      e.out.resize(static_cast<size_t>(rows.size() * whole));
      for (int32_t rank = 0; rank < place.size; ++rank) {
        const std::vector<float> values = random_values(op.seed, rank, n);
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          for (int64_t column = 0; column < op.width; ++column) {
            const int64_t at = rank * op.width + column;
            if (at < whole) {
              e.out[static_cast<size_t>((row - rows.begin) * whole + at)] =
                  values[static_cast<size_t>(row * op.width + column)];
            }
          }
        }
      }
      break;
    }
    case OperationKind::kSendReceive:
      e.out = place.rank == op.to ? random_values(op.seed, op.from, n) : e.in;
      break;
    case OperationKind::kCount:
      break;
  }
  return e;
}

// Whether an operation's output is also its input.
inline bool is_in_place(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kBroadcast ||
         kind == OperationKind::kSendReceive;
}

// Enqueues it on memory that the stream's device reaches.
inline void enqueue_operation(
    Communicator& comm, Stream& stream, const Operation& op, const float* in, float* out) {
  const GroupPlace place = comm.place();
  const size_t bytes = static_cast<size_t>(op.rows * op.width) * sizeof(float);
  auto* out_bytes = reinterpret_cast<std::byte*>(out);
  switch (op.kind) {
    case OperationKind::kAllReduce:
      comm.all_reduce(stream, make_view(out, op.rows, op.width));
      break;
    case OperationKind::kAllGather:
      comm.all_gather(stream, reinterpret_cast<const std::byte*>(in), out_bytes, bytes);
      break;
    case OperationKind::kBroadcast:
      comm.broadcast(stream, out_bytes, bytes, op.from);
      break;
    case OperationKind::kExchangeColumns:
      comm.exchange_columns(
          stream,
          make_view(in, op.rows, op.width),
          make_view(out, place.share(op.rows).size(), place.size * op.width - op.padding));
      break;
    case OperationKind::kSendReceive:
      if (place.rank == op.from) {
        comm.send(stream, out_bytes, bytes, op.to);
      } else if (place.rank == op.to) {
        comm.receive(stream, out_bytes, bytes, op.from);
      }
      break;
    case OperationKind::kCount:
      break;
  }
}

// An operation with its memory on one rank.
class RankOperation {
 public:
  RankOperation(const Operation& op, GroupPlace place) : op_(op), expectation_(expect(op, place)) {
    load();
  }

  // Puts the input back, as before the first run.
  void load() {
    in_ = expectation_.in;
    out_.assign(expectation_.out.size(), -1.0F);
    if (is_in_place(op_.kind)) {
      out_ = in_;
    }
  }

  void enqueue(Communicator& comm, Stream& stream) {
    enqueue_operation(comm, stream, op_, in_.data(), out_.data());
  }

  // Whether the output has the expected bits.
  [[nodiscard]] bool right() const {
    return out_.size() == expectation_.out.size() &&
           (out_.empty() ||
            std::memcmp(out_.data(), expectation_.out.data(), out_.size() * sizeof(float)) == 0);
  }
  [[nodiscard]] const Operation& operation() const { return op_; }

 private:
  Operation op_;
  Expectation expectation_;
  std::vector<float> in_;
  std::vector<float> out_;
};

// Operations in random order. Most are small; about one in 16 is up to `most` values.
inline std::vector<Operation> random_operations(uint64_t seed,
                                                int32_t size,
                                                int32_t count,
                                                int64_t most) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<Operation> operations;
  for (int32_t i = 0; i < count; ++i) {
    Operation op;
    do {
      op.kind = static_cast<OperationKind>(below(static_cast<int64_t>(OperationKind::kCount)));
    } while (op.kind == OperationKind::kSendReceive && size == 1);
    const int64_t n = 1 + below(below(16) == 0 ? most : 300);
    op.rows = 1 + below(7);
    op.width = std::max<int64_t>(1, n / op.rows);
    op.padding = below(std::min<int64_t>(op.width, 5));
    op.from = static_cast<int32_t>(below(size));
    op.to = static_cast<int32_t>((op.from + 1 + below(std::max(1, size - 1))) % size);
    op.seed = random();
    operations.push_back(op);
  }
  return operations;
}

}  // namespace warprow::test
