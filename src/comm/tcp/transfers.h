// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/tcp/tcp_host_group.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <poll.h>
#include <vector>

namespace warprow {

// Rows of bytes in memory. T is std::byte or const std::byte.
template <typename T>
struct ByteRows {
  T* data = nullptr;
  size_t row_bytes = 0;
  int64_t rows = 1;
  int64_t stride = 0;  // bytes
  [[nodiscard]] size_t bytes() const { return row_bytes * static_cast<size_t>(rows); }
};

// Data that goes to and comes from the members of a mesh at the same time, in place: no member waits for another to
// send first. At most one block to and one from each member.
//
// Thread: one. Nothing is allocated after construction.
class Transfers {
 public:
  Transfers(TcpMesh mesh, const AbortFlag& abort);

  void send(int32_t member, ByteRows<const std::byte> block);
  void receive(int32_t member, ByteRows<std::byte> block);

  // Moves all blocks and forgets them. False: the group was aborted, or a connection was lost (lost_rank).
  bool run();
  // The rank in the engine of the member whose connection was lost.
  [[nodiscard]] std::optional<int32_t> lost_rank() const { return lost_rank_; }
  [[nodiscard]] const TcpMesh& mesh() const { return mesh_; }

 private:
  template <typename T>
  struct Moving {
    ByteRows<T> block;
    size_t moved = 0;
    [[nodiscard]] bool done() const { return moved == block.bytes(); }
    // What is left of the current row.
    [[nodiscard]] T* next() const;
    [[nodiscard]] size_t next_bytes() const { return block.row_bytes - moved % block.row_bytes; }
  };
  // These return whether bytes were moved.
  bool send_some(size_t member);
  bool receive_some(size_t member);
  void wait();

  TcpMesh mesh_;
  const AbortFlag& abort_;
  std::vector<Moving<const std::byte>> outgoing_;  // by member
  std::vector<Moving<std::byte>> incoming_;
  std::vector<pollfd> polled_;
  std::optional<int32_t> lost_rank_;
};

}  // namespace warprow
