// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/message_ring.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// A ring in this process's memory.
struct Ring {
  Ring(size_t capacity, int32_t num_readers)
      : memory(MessageRing::bytes(capacity, num_readers) + alignof(ProgressWord)),
        ring(aligned(), capacity, num_readers) {}

  std::byte* aligned() {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    const uintptr_t up = (address + alignof(ProgressWord) - 1) & ~(alignof(ProgressWord) - 1);
    return memory.data() + (up - address);
  }

  std::vector<std::byte> memory;
  MessageRing ring;
  AbortFlag abort;
};

// The n-th message of a run: mostly small, some larger than the ring.
std::vector<uint8_t> message_of(uint32_t n) {
  const uint32_t random = n * 2654435761U >> 12;
  const size_t size = random % 16 == 0 ? random % 5000 : random % 100;
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<uint8_t>(n + 31 * i);
  }
  return bytes;
}

TEST(MessageRing, EveryReaderGetsEveryMessageInOrder) {
  constexpr uint32_t kMessages = 3000;
  Ring shared(1024, 3);
  std::vector<int> good(3);
  {
    std::vector<std::jthread> readers;
    for (int32_t r = 0; r < 3; ++r) {
      readers.emplace_back([&shared, &good, r] {
        RingReader reader(shared.ring, r, shared.abort);
        RingMessage message;
        for (uint32_t n = 0; n < kMessages && reader.read(message); ++n) {
          good[static_cast<size_t>(r)] +=
              message.kind == n % 5 && message.bytes == message_of(n) ? 1 : 0;
        }
      });
    }
    RingWriter writer(shared.ring, shared.abort);
    for (uint32_t n = 0; n < kMessages; ++n) {
      const std::vector<uint8_t> bytes = message_of(n);
      const std::span<const uint8_t> all(bytes);
      ASSERT_TRUE(writer.write(n % 5, all.first(bytes.size() / 3), all.subspan(bytes.size() / 3)));
    }
  }
  EXPECT_EQ(good, std::vector<int>(3, kMessages));
}

TEST(MessageRing, AReaderWaitsForTheFirstByteOnly) {
  Ring shared(1024, 1);
  RingReader reader(shared.ring, 0, shared.abort);
  EXPECT_FALSE(reader.has_message());
  EXPECT_FALSE(reader.wait(Waiting::Clock::now() + std::chrono::milliseconds(2)));
  RingWriter writer(shared.ring, shared.abort);
  writer.write(9, {});
  EXPECT_TRUE(reader.has_message());
  RingMessage message;
  ASSERT_TRUE(reader.read(message));
  EXPECT_EQ(message.kind, 9U);
  EXPECT_TRUE(message.bytes.empty());
  EXPECT_FALSE(reader.has_message());
}

TEST(MessageRing, AnAbortEndsBothSides) {
  Ring shared(1024, 2);
  bool wrote = true;
  bool got = true;
  {
    const std::jthread writer([&] {
      wrote = RingWriter(shared.ring, shared.abort).write(1, std::vector<uint8_t>(4096));
    });
    const std::jthread reader([&] {  // the other reader reads nothing
      RingMessage message;
      got = RingReader(shared.ring, 0, shared.abort).read(message);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    shared.abort.raise(1, AbortPhase::kStep);
  }
  EXPECT_FALSE(wrote);
  EXPECT_FALSE(got);
}

}  // namespace
}  // namespace warprow
