// SPDX-License-Identifier: Apache-2.0
#include "executor/external/rank_link.h"

#include "executor/external/rank_report.h"
#include "wire/serialize.h"

#include <cstring>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

// Two ends of a connection.
class RankLinkTest : public ::testing::Test {
 protected:
  RankLinkTest() {
    int ends[2] = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    raw_ = ends[0];
    mine_.emplace(Socket(ends[0]), abort_);
    peer_.emplace(Socket(ends[1]), abort_);
  }

  RankLink::Received receive() {
    return peer_->receive(message_, Clock::now() + std::chrono::milliseconds(50));
  }
  // Bytes that no RankLink sent.
  void send_raw(const void* bytes, size_t size) {
    ASSERT_EQ(::send(raw_, bytes, size, 0), static_cast<ssize_t>(size));
  }
  // A header with its bytes.
  void send_frame(uint32_t magic, uint64_t num_bytes, uint64_t checksum, const std::string& text) {
    struct {
      uint32_t magic;
      uint32_t kind;
      uint64_t num_bytes;
      uint64_t checksum;
    } const header = {magic, 7, num_bytes, checksum};
    send_raw(&header, sizeof header);
    send_raw(text.data(), text.size());
  }
  static uint64_t checksum_of(const std::string& text) {
    return payload_checksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }

  static constexpr uint32_t kMagic = 0x6b6e6c77;
  AbortFlag abort_;
  int raw_ = -1;
  std::optional<RankLink> mine_;
  std::optional<RankLink> peer_;
  RingMessage message_;
};

TEST_F(RankLinkTest, MessagesArriveAsTheyWereSent) {
  const std::vector<uint8_t> large(size_t{5} << 20, 0x5a);
  std::thread sender([&] {
    EXPECT_TRUE(mine_->send(3, {}));
    EXPECT_TRUE(mine_->send(4, large));
  });
  EXPECT_EQ(receive(), RankLink::Received::kMessage);
  EXPECT_EQ(message_.kind, 3U);
  EXPECT_TRUE(message_.bytes.empty());
  EXPECT_EQ(receive(), RankLink::Received::kMessage);
  EXPECT_EQ(message_.kind, 4U);
  EXPECT_EQ(message_.bytes, large);
  sender.join();
  EXPECT_EQ(receive(), RankLink::Received::kNothing);
  mine_.reset();
  EXPECT_EQ(receive(), RankLink::Received::kClosed);
}

TEST_F(RankLinkTest, AFrameOfAnotherIsTaken) {
  send_frame(kMagic, 5, checksum_of("hello"), "hello");
  EXPECT_EQ(receive(), RankLink::Received::kMessage);
}

TEST_F(RankLinkTest, AWrongChecksumIsDamage) {
  send_frame(kMagic, 5, checksum_of("hello"), "hallo");
  EXPECT_EQ(receive(), RankLink::Received::kDamaged);
}

TEST_F(RankLinkTest, AnotherMagicIsDamage) {
  send_frame(kMagic + 1, 5, checksum_of("hello"), "hello");
  EXPECT_EQ(receive(), RankLink::Received::kDamaged);
}

TEST_F(RankLinkTest, ALengthAboveTheLimitIsDamageAndTakesNoMemory) {
  send_frame(kMagic, RankLink::kMostBytes + 1, 0, "");
  EXPECT_EQ(receive(), RankLink::Received::kDamaged);
  EXPECT_LT(message_.bytes.capacity(), size_t{1} << 20);
}

// A length within the limit takes memory as the bytes arrive.
TEST_F(RankLinkTest, AnEndWithinAMessageIsAnEnd) {
  send_frame(kMagic, RankLink::kMostBytes, 0, "hello");
  mine_.reset();
  EXPECT_EQ(receive(), RankLink::Received::kClosed);
  EXPECT_LE(message_.bytes.capacity(), size_t{1} << 20);
}

TEST_F(RankLinkTest, AnAbortEndsWaits) {
  send_frame(kMagic, 5, 0, "");
  std::thread aborting([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    abort_.raise(1, AbortPhase::kStep);
  });
  EXPECT_EQ(receive(), RankLink::Received::kNothing);
  const std::vector<uint8_t> large(size_t{8} << 20);
  EXPECT_FALSE(mine_->send(4, large));  // nobody reads
  aborting.join();
}

TEST(RankReport, TheStateOfARankArrives) {
  RankState state{};
  state.phase.store(RankPhase::kRunning);
  state.step.store(12);
  state.retired.store(11);
  state.fail("no more memory");
  std::vector<uint8_t> bytes;
  encode_report(state, bytes);
  RankState copy{};
  ASSERT_TRUE(take_report(bytes, copy));
  EXPECT_EQ(copy.phase.load(), RankPhase::kRunning);
  EXPECT_EQ(copy.step.load(), 12);
  EXPECT_EQ(copy.retired.load(), 11);
  EXPECT_EQ(copy.failure(), "no more memory");
  EXPECT_EQ(copy.beats.load(), 1U);
}

TEST(RankReport, WhatIsNoneIsRefused) {
  RankState state{};
  std::vector<uint8_t> bytes;
  encode_report(state, bytes);
  RankState copy{};
  EXPECT_FALSE(take_report(std::span(bytes).first(bytes.size() - 1), copy));
  std::vector<uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(take_report(longer, copy));
  std::vector<uint8_t> other_phase = bytes;
  other_phase.front() = 200;
  EXPECT_FALSE(take_report(other_phase, copy));
  std::vector<uint8_t> long_text = bytes;
  std::memset(long_text.data() + long_text.size() - 4, 0xff, 4);
  EXPECT_FALSE(take_report(long_text, copy));
  EXPECT_EQ(copy.beats.load(), 0U);
}

}  // namespace
}  // namespace warprow
