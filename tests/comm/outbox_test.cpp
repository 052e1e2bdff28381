// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/outbox.h"

#include "comm/tcp/socket.h"

#include <chrono>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

constexpr size_t kCapacity = size_t{4} << 20;

// Member 0 has the outbox; the test reads as member 1.
class OutboxTest : public ::testing::Test {
 protected:
  OutboxTest() {
    int ends[2] = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    mesh_.place = {0, 2};
    mesh_.ranks = {3, 5};
    mesh_.sockets.emplace_back();
    mesh_.sockets.emplace_back(ends[0]);
    peer_ = Socket(ends[1]);
    outbox_.emplace(mesh_, abort_, kCapacity);
  }
  ~OutboxTest() override { outbox_.reset(); }

  static std::vector<std::byte> numbered(size_t size, uint32_t seed) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
    }
    return bytes;
  }
  std::vector<std::byte> read(size_t size) {
    std::vector<std::byte> bytes(size);
    const Patience patience{std::chrono::steady_clock::now() + std::chrono::seconds(20), &abort_};
    EXPECT_EQ(receive_all(peer_, bytes, patience), SocketResult::kDone);
    return bytes;
  }

  AbortFlag abort_;
  TcpMesh mesh_;
  Socket peer_;
  std::optional<Outbox> outbox_;
};

TEST_F(OutboxTest, KeepsWhatNobodyReads) {
  const auto first = numbered(kCapacity / 2, 1);
  const auto second = numbered(kCapacity / 2, 2);
  EXPECT_TRUE(outbox_->put(1, first));
  EXPECT_TRUE(outbox_->put(1, second));  // nobody has read yet
  EXPECT_EQ(read(first.size()), first);
  EXPECT_EQ(read(second.size()), second);
}

TEST_F(OutboxTest, MoreThanItsRoomPassesInOrder) {
  std::thread sender([&] {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      EXPECT_TRUE(outbox_->put(1, numbered(size_t{seed} * 33333, seed)));
    }
  });
  for (uint32_t seed = 0; seed < 40; ++seed) {
    ASSERT_EQ(read(size_t{seed} * 33333), numbered(size_t{seed} * 33333, seed)) << seed;
  }
  sender.join();
}

TEST_F(OutboxTest, AnAbortEndsTheWaitForRoom) {
  std::thread aborting([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    abort_.raise(5, AbortPhase::kStep);
  });
  EXPECT_FALSE(outbox_->put(1, numbered(3 * kCapacity, 1)));
  EXPECT_FALSE(outbox_->lost_rank());
  aborting.join();
}

TEST_F(OutboxTest, ALostConnectionNamesTheRank) {
  peer_ = Socket();
  EXPECT_FALSE(outbox_->put(1, numbered(3 * kCapacity, 1)));
  EXPECT_EQ(outbox_->lost_rank(), 5);
}

}  // namespace
}  // namespace warprow::test
