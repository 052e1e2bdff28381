// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/stream.h"
#include "device/view.h"
#include "kernels/linear/linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace warprow {

// Items [begin, end) of n.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
};

// The place of a rank in a group.
struct GroupPlace {
  int32_t rank = 0;
  int32_t size = 1;

  // The most items that a rank has of n. All shares are that large but the last ones, which may be smaller or empty:
  // an all_gather of this many items of each rank leaves all n adjacent.
  [[nodiscard]] int64_t largest_share(int64_t n) const { return ceil_div(n, int64_t{size}); }
  [[nodiscard]] Share share_of(int32_t of, int64_t n) const {
    const int64_t most = largest_share(n);
    return {std::min(of * most, n), std::min((of + 1) * most, n)};
  }
  [[nodiscard]] Share share(int64_t n) const { return share_of(rank, n); }
};

// What the ranks of a group compute together. Every rank enqueues the same operations in the same order and with the
// same sizes; send and receive are enqueued by the two ranks that they name. Nothing waits on the host: an operation
// waits for the other ranks when the stream runs it. It may be recorded in a graph. A shape-only stream drops it.
//
// A sum has one order: rank 0's value, then rank 1's, and so on. It has the same bits on every rank, in every run and
// over every transport.
//
// After an abort (comm/abort_flag.h) every operation ends soon and leaves its output undefined, so that no rank waits
// for one that is gone. The communicator is of no use from then on.
//
// Owns: its part of the transport. It outlives what is enqueued and the graphs that hold its operations.
// Thread: one at a time enqueues. All operations of a communicator go to one stream at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] GroupPlace place() const { return place_; }

  // values = the sum of all ranks' values, dev f32 [n, width] with adjacent rows.
  virtual void all_reduce(Stream& stream, View<float, 2> values) = 0;
  // residual += the sum of all ranks' products, both dev f32 [n, width] with adjacent rows. With `next`, on a GPU, also the
  // first half of the norm of residual's rows. The product is undefined afterwards.
  virtual void add_sum(Stream& stream,
                       View<float, 2> product,
                       View<float, 2> residual,
                       const HalfNorm* next);
  // all = every rank's `bytes` bytes, by rank. `mine` may be its own place in `all`.
  virtual void all_gather(Stream& stream, const std::byte* mine, std::byte* all, size_t bytes) = 0;
  // On every rank: data = that of `root`.
  virtual void broadcast(Stream& stream, std::byte* data, size_t bytes, int32_t root) = 0;
  // From columns of all rows to all columns of a share of the rows.
  //   mine  dev f32 [n, part]: rank r's columns are [r * part, (r + 1) * part) of the whole
  //   all   dev f32 [place().share(n), whole], whole <= size * part: columns past `whole` are padding and dropped
  // Rows may have strides. The two do not overlap.
  virtual void exchange_columns(Stream& stream, View<const float, 2> mine, View<float, 2> all) = 0;
  // Between two ranks. The sends and receives of a pair match in order and size. A send may end before its data
  // is received, or wait for it: where ranks send in a circle, one of them receives first.
  virtual void send(Stream& stream, const std::byte* data, size_t bytes, int32_t to) = 0;
  virtual void receive(Stream& stream, std::byte* data, size_t bytes, int32_t from) = 0;

 protected:
  explicit Communicator(GroupPlace place) : place_(place) {}

 private:
  GroupPlace place_;
};

}  // namespace warprow
