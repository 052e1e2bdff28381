// SPDX-License-Identifier: Apache-2.0
#include "wire/serialize.h"

#include <cstring>
#include <iterator>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

// Random messages whose spans stay inside their pools.
class Maker {
 public:
  explicit Maker(uint32_t seed) : random_(seed) {}

  int32_t number(int32_t below) {
    return static_cast<int32_t>(random_() % static_cast<uint32_t>(below));
  }
  int32_t any() { return static_cast<int32_t>(random_()); }
  float real() { return static_cast<float>(number(1000)) / 7.0F; }
  template <typename T, typename F>
  void fill(std::vector<T>& list, F make) {
    list.clear();
    for (int32_t i = number(6); i > 0; --i) {
      list.push_back(make());
    }
  }
  Span32 span_in(size_t pool) {
    const int32_t begin = number(static_cast<int32_t>(pool) + 1);
    return {begin, number(static_cast<int32_t>(pool) - begin + 1)};
  }
  RowId row() { return RowId{number(100)}; }

  SamplingParams params() {
    SamplingParams params;
    params.temperature = real();
    params.top_k = any();
    params.seed = random_();
    params.repetition_penalty = real();
    params.flags = static_cast<uint32_t>(any());
    params.num_prompt_logprobs = any();
    params.reserved[std::size(params.reserved) - 1] = any();
    return params;
  }

  SchedulerOutput scheduler_output() {
    SchedulerOutput m;
    m.step = any();
    fill(m.token_ids, [&] { return any(); });
    fill(m.block_ids, [&] { return BlockId{any()}; });
    fill(m.stop_ids, [&] { return any(); });
    fill(m.token_lists, [&] { return any(); });
    fill(m.finished_rows, [&] { return row(); });
    fill(m.preempted_rows, [&] { return row(); });
    fill(m.new_rows, [&] {
      return NewRow{row(),
                    static_cast<uint32_t>(any()),
                    any(),
                    any(),
                    any(),
                    span_in(m.token_ids.size()),
                    any(),
                    params(),
                    span_in(m.stop_ids.size()),
                    span_in(m.token_lists.size())};
    });
    fill(m.block_appends,
         [&] { return BlockAppend{row(), number(3), any(), span_in(m.block_ids.size())}; });
    fill(m.scheduled, [&] { return ScheduledRow{row(), number(50) + 1, any(), any()}; });
    for (const ScheduledRow& s : m.scheduled) {
      m.total_num_tokens += s.num_tokens;
    }
    fill(m.draft_token_ids, [&] { return any(); });
    fill(m.grammar_rows, [&] { return row(); });
    fill(m.encoder_inputs, [&] { return EncoderInput{row(), any()}; });
    fill(m.encoder_frees, [&] { return static_cast<uint64_t>(any()) << 20; });
    fill(m.block_copies, [&] { return BlockCopy{any(), BlockId{any()}, BlockId{any()}}; });
    fill(m.blocks_to_zero, [&] { return BlockId{any()}; });
    fill(m.connector_metadata, [&] { return static_cast<uint8_t>(any()); });
    m.num_common_prefix_blocks = any();
    m.data_parallel = {any(), any()};
    return m;
  }

  std::optional<RowTensors> tensors() {
    if (number(2) == 0) {
      return std::nullopt;
    }
    RowTensors tensors;
    tensors.width = number(7);
    fill(tensors.values, [&] { return real(); });
    return tensors;
  }

  ModelRunnerOutput runner_output() {
    ModelRunnerOutput m;
    m.step = any();
    fill(m.token_ids, [&] { return any(); });
    fill(m.top_ids, [&] { return any(); });
    for (size_t i = 0; i < m.top_ids.size(); ++i) {
      m.top_logprobs.push_back(real());
    }
    fill(m.prompt_logprobs,
         [&] { return TokenLogprobs{real(), any(), span_in(m.top_ids.size())}; });
    m.hidden_states = tensors();
    const size_t num_hidden = m.hidden_states ? m.hidden_states->num_vectors() : 0;
    fill(m.rows, [&] {
      return RowOutput{row(),
                       static_cast<uint32_t>(any()),
                       span_in(m.token_ids.size()),
                       any(),
                       static_cast<RowFailure>(number(3)),
                       span_in(m.prompt_logprobs.size()),
                       span_in(num_hidden)};
    });
    m.has_logprobs = number(2) == 0;
    if (m.has_logprobs) {
      for (size_t i = 0; i < m.token_ids.size(); ++i) {
        m.logprobs.push_back({real(), any(), span_in(m.top_ids.size())});
      }
    }
    m.pooled = tensors();
    fill(m.connector_output, [&] { return static_cast<uint8_t>(any()); });
    m.stats = {any(), any(), any(), any()};
    return m;
  }

 private:
  std::mt19937 random_;
};

template <typename Message>
Message make(Maker& maker) {
  if constexpr (std::is_same_v<Message, SchedulerOutput>) {
    return maker.scheduler_output();
  } else {
    return maker.runner_output();
  }
}

// Writes the checksum that the payload should have, so that damage reaches the parser.
void stamp(std::vector<uint8_t>& bytes) {
  const uint64_t checksum = payload_checksum(std::span(bytes).subspan(kWireHeaderBytes));
  const uint64_t num_bytes = bytes.size() - kWireHeaderBytes;
  std::memcpy(bytes.data() + 8, &num_bytes, 8);
  std::memcpy(bytes.data() + 16, &checksum, 8);
}

template <typename Message>
class Serialize : public ::testing::Test {};
using Messages = ::testing::Types<SchedulerOutput, ModelRunnerOutput>;
TYPED_TEST_SUITE(Serialize, Messages);

TYPED_TEST(Serialize, RoundTrips) {
  std::vector<uint8_t> bytes;
  TypeParam back;
  for (uint32_t seed = 0; seed < 500; ++seed) {
    Maker maker(seed);
    const auto message = make<TypeParam>(maker);
    serialize(message, bytes);
    const auto read = deserialize(bytes, back);
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(back, message);
  }
}

TYPED_TEST(Serialize, EveryTruncationIsAnError) {
  Maker maker(3);
  std::vector<uint8_t> bytes;
  serialize(make<TypeParam>(maker), bytes);
  TypeParam back;
  for (size_t n = 0; n < bytes.size(); ++n) {
    std::vector<uint8_t> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    const auto read = deserialize(part, back);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
    if (n >= kWireHeaderBytes) {
      stamp(part);
      EXPECT_FALSE(deserialize(part, back)) << n;
    }
  }
  bytes.push_back(0);
  stamp(bytes);
  EXPECT_THAT(deserialize(bytes, back).error().message, HasSubstr("follow the last field"));
  EXPECT_EQ(back, TypeParam{});
}

TYPED_TEST(Serialize, EveryFlippedBitIsAnError) {
  Maker maker(4);
  std::vector<uint8_t> bytes;
  serialize(make<TypeParam>(maker), bytes);
  TypeParam back;
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    EXPECT_FALSE(deserialize(bytes, back)) << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
  }
  EXPECT_TRUE(deserialize(bytes, back));
}

// Behind a valid checksum, damage gives an error or another message that means itself.
TYPED_TEST(Serialize, DamageBehindAValidChecksum) {
  std::vector<uint8_t> again;
  TypeParam back;
  int num_errors = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    Maker maker(seed);
    std::vector<uint8_t> bytes;
    serialize(make<TypeParam>(maker), bytes);
    for (int32_t i = maker.number(4); i >= 0; --i) {
      const auto at =
          kWireHeaderBytes +
          static_cast<size_t>(maker.number(static_cast<int32_t>(bytes.size() - kWireHeaderBytes)));
      bytes[at] = static_cast<uint8_t>(maker.number(3) == 0 ? 0xff : maker.any());
    }
    stamp(bytes);
    if (deserialize(bytes, back)) {
      serialize(back, again);
      ASSERT_EQ(again, bytes);
    } else {
      ++num_errors;
      ASSERT_EQ(back, TypeParam{});
    }
  }
  EXPECT_GT(num_errors, 100);
}

TEST(SerializeKinds, AreNotMixedUp) {
  std::vector<uint8_t> bytes;
  serialize(SchedulerOutput{}, bytes);
  ModelRunnerOutput other;
  EXPECT_THAT(deserialize(bytes, other).error().message, HasSubstr("kind 1"));
}

TEST(SerializeKinds, ALyingCountReservesNothing) {
  std::vector<uint8_t> bytes;
  serialize(SchedulerOutput{}, bytes);
  const uint32_t huge = 0xffffffffU;
  std::memcpy(bytes.data() + kWireHeaderBytes + 8, &huge, 4);  // the count of finished_rows
  stamp(bytes);
  SchedulerOutput back;
  EXPECT_THAT(deserialize(bytes, back).error().message, HasSubstr("count exceeds"));
  EXPECT_EQ(back.finished_rows.capacity(), 0U);
}

}  // namespace
}  // namespace warprow
