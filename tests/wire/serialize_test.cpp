// SPDX-License-Identifier: Apache-2.0
#include "wire/serialize.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

// Random messages whose spans are inside their pools.
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
    m.results_through = any();
    m.max_mixed_prefill = any();
    fill(m.token_ids, [&] { return any(); });
    fill(m.block_ids, [&] { return BlockId{any()}; });
    fill(m.stop_ids, [&] { return any(); });
    fill(m.token_lists, [&] { return any(); });
    m.embeddings = embeddings();
    fill(m.finished_rows, [&] { return row(); });
    fill(m.preempted_rows, [&] { return row(); });
    const size_t num_ids = m.token_ids.size();
    fill(m.new_rows, [&] {
      const Span32 embeds = span_in(m.embeddings.num_vectors());
      Span32 tokens = span_in(num_ids);
      if (embeds.count > 0) {  // ids of its own, and as many without an id
        tokens = {static_cast<int32_t>(m.token_ids.size()), embeds.count + 1};
        m.token_ids.insert(m.token_ids.end(), static_cast<size_t>(embeds.count), TokenId{-1});
        m.token_ids.push_back(number(100));
      }
      return NewRow{row(),
                    static_cast<uint32_t>(any()),
                    embeds.count > 0 ? tokens.count : any(),
                    any(),
                    any(),
                    tokens,
                    any(),
                    params(),
                    span_in(m.stop_ids.size()),
                    span_in(m.token_lists.size()),
                    embeds};
    });
    fill(m.block_appends,
         [&] { return BlockAppend{row(), number(3), any(), span_in(m.block_ids.size())}; });
    fill(m.scheduled, [&] { return scheduled_row(); });
    const bool host_drafts = number(2) == 0;
    for (const ScheduledRow& s : m.scheduled) {
      m.total_num_tokens += s.num_tokens;
      for (int32_t i = 0; host_drafts && i < s.num_drafts; ++i) {
        m.draft_token_ids.push_back(number(100) - 1);
      }
    }
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

  ScheduledRow scheduled_row() {
    ScheduledRow s{row(), number(50) + 1, any()};
    s.num_drafts = number(std::min(s.num_tokens, 5));
    s.num_logits = number(3) == 0 ? 0 : 1 + s.num_drafts;
    s.wants_drafts = number(2) == 0;
    return s;
  }

  EmbeddingVectors embeddings() {
    EmbeddingVectors vectors;
    vectors.width = number(4);
    vectors.values.resize(static_cast<size_t>(number(5) * vectors.width));
    return vectors;
  }

  GrammarOutput grammar_output() {
    GrammarOutput m;
    const int32_t num_words = number(4) + 1;
    fill(m.masked_rows, [&] { return MaskedRow{row(), number(5) + 1}; });
    for (const MaskedRow& r : m.masked_rows) {
      m.bitmask.resize(m.bitmask.size() + static_cast<size_t>(r.num_masks * num_words));
    }
    for (uint32_t& word : m.bitmask) {
      word = static_cast<uint32_t>(any());
    }
    fill(m.withheld_rows, [&] { return row(); });
    return m;
  }

  NamedTensor named_tensor() {
    NamedTensor tensor;
    fill(tensor.bytes, [&] { return static_cast<uint8_t>(any()); });
    tensor.name.assign(static_cast<size_t>(number(8)), 'x');
    tensor.dtype = DType::kU8;
    tensor.shape = {1, static_cast<int64_t>(tensor.bytes.size())};
    return tensor;
  }

  RowOutput row_output(const ModelRunnerOutput& m) {
    RowOutput r;
    r.row = row();
    r.generation = static_cast<uint32_t>(any());
    r.kind = static_cast<RowResult>(number(4));
    if (r.kind == RowResult::kTokens) {
      r.tokens = span_in(m.token_ids.size());
      r.num_rejected = number(5);
      r.failure = static_cast<RowFailure>(number(3));
    } else if (r.kind == RowResult::kPooled) {
      r.pooled = span_in(m.pooled ? m.pooled->num_vectors() : 0);
    } else if (r.kind == RowResult::kTensors) {
      r.tensors = span_in(m.tensors.size());
    }
    r.prompt_logprobs = span_in(m.prompt_logprobs.size());
    r.hidden = span_in(m.hidden_states ? m.hidden_states->num_vectors() : 0);
    r.drafts = span_in(m.draft_token_ids.size());
    return r;
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
    m.pooled = tensors();
    fill(m.tensors, [&] { return named_tensor(); });
    fill(m.draft_token_ids, [&] { return any(); });
    fill(m.rows, [&] { return row_output(m); });
    m.has_logprobs = number(2) == 0;
    if (m.has_logprobs) {
      for (size_t i = 0; i < m.token_ids.size(); ++i) {
        m.logprobs.push_back({real(), any(), span_in(m.top_ids.size())});
      }
    }
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
  } else if constexpr (std::is_same_v<Message, GrammarOutput>) {
    return maker.grammar_output();
  } else {
    return maker.runner_output();
  }
}

// Writes the correct checksum of the payload, so that the damage reaches the parser.
void stamp(std::vector<uint8_t>& bytes) {
  const uint64_t checksum = payload_checksum(std::span(bytes).subspan(kWireHeaderBytes));
  const uint64_t num_bytes = bytes.size() - kWireHeaderBytes;
  std::memcpy(bytes.data() + 8, &num_bytes, 8);
  std::memcpy(bytes.data() + 16, &checksum, 8);
}

template <typename Message>
class Serialize : public ::testing::Test {};
using Messages = ::testing::Types<SchedulerOutput, GrammarOutput, ModelRunnerOutput>;
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

// With a valid checksum, damage gives either an error or another message that round-trips.
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
  std::memcpy(bytes.data() + kWireHeaderBytes + 16, &huge, 4);  // the count of finished_rows
  stamp(bytes);
  SchedulerOutput back;
  EXPECT_THAT(deserialize(bytes, back).error().message, HasSubstr("count exceeds"));
  EXPECT_EQ(back.finished_rows.capacity(), 0U);
}

template <typename Message>
std::string refusal_of(const Message& message) {
  std::vector<uint8_t> bytes;
  serialize(message, bytes);
  Message back;
  const Result<void> read = deserialize(bytes, back);
  return read ? "" : read.error().message;
}

// Damages a step with one row that samples after three drafts.
std::string refusal_of_row(void (*change)(ScheduledRow&)) {
  SchedulerOutput step;
  ScheduledRow& row = step.scheduled.emplace_back();
  row = {RowId{1}, 4, 20, 3, 4};
  change(row);
  step.total_num_tokens = row.num_tokens;
  return refusal_of(step);
}

TEST(SerializeCounts, DraftsAndLogitsOfARow) {
  EXPECT_EQ(refusal_of_row([](ScheduledRow&) {}), "");
  EXPECT_EQ(refusal_of_row([](ScheduledRow& row) { row.num_logits = 0; }), "");
  EXPECT_THAT(refusal_of_row([](ScheduledRow& row) { row.num_logits = 1; }),
              HasSubstr("neither 0 nor 1 + num_drafts"));
  EXPECT_THAT(refusal_of_row([](ScheduledRow& row) { row.num_tokens = 3; }),
              HasSubstr("num_drafts is not below num_tokens"));
  EXPECT_THAT(refusal_of_row([](ScheduledRow& row) { row.num_drafts = -1; }),
              HasSubstr("num_drafts is not below num_tokens"));
}

TEST(SerializeCounts, DraftsOfTheHost) {
  SchedulerOutput step;
  step.scheduled = {{RowId{1}, 1, 9, 0, 1}, {RowId{2}, 3, 20, 2, 3}};
  step.total_num_tokens = 4;
  step.draft_token_ids = {17, -1};
  EXPECT_EQ(refusal_of(step), "");
  step.draft_token_ids.push_back(3);
  EXPECT_THAT(refusal_of(step), HasSubstr("draft_token_ids"));
}

// A request with embeddings and one with ids.
TEST(SerializeCounts, Embeddings) {
  SchedulerOutput step;
  step.token_ids = {-1, 4, -1, 5, 6, 7};
  step.embeddings = {3, std::vector<float>(6)};
  NewRow& row = step.new_rows.emplace_back();
  row.prompt_len = row.prefill_len = 3;
  row.tokens = {0, 3};
  row.embeds = {0, 2};
  step.new_rows.emplace_back().tokens = {3, 3};
  EXPECT_EQ(step.embeddings.num_vectors(), 2U);
  EXPECT_EQ(refusal_of(step), "");
  step.new_rows[0].embeds.count = 1;
  EXPECT_THAT(refusal_of(step), HasSubstr("each token without an id"));
  step.new_rows[0].embeds = {1, 2};
  EXPECT_THAT(refusal_of(step), HasSubstr("embeds points outside"));
  step.embeddings.values.pop_back();
  EXPECT_THAT(refusal_of(step), HasSubstr("no whole vectors"));
}

TEST(SerializeCounts, MasksByLogit) {
  GrammarOutput grammar;
  grammar.masked_rows = {{RowId{4}, 3}, {RowId{1}, 1}};
  grammar.bitmask.resize(size_t{4} * 5);
  EXPECT_EQ(refusal_of(grammar), "");
  grammar.bitmask.pop_back();
  EXPECT_THAT(refusal_of(grammar), HasSubstr("no whole number of words"));
  grammar.bitmask.clear();
  EXPECT_THAT(refusal_of(grammar), HasSubstr("no whole number of words"));
  grammar.masked_rows = {{RowId{4}, 0}};
  EXPECT_THAT(refusal_of(grammar), HasSubstr("num_masks is below 1"));
}

TEST(SerializeCounts, AResultIsOfItsKind) {
  ModelRunnerOutput output;
  output.token_ids = {5, 6};
  output.pooled = RowTensors{2, {0.5F, 1.0F}};
  output.tensors = {{"hidden", DType::kF32, {2, 1}, std::vector<uint8_t>(8)}};
  output.rows.resize(4);
  output.rows[1].kind = RowResult::kTokens;
  output.rows[1].tokens = {0, 2};
  output.rows[2].kind = RowResult::kPooled;
  output.rows[2].pooled = {0, 1};
  output.rows[3].kind = RowResult::kTensors;
  output.rows[3].tensors = {0, 1};
  EXPECT_EQ(refusal_of(output), "");
  output.rows[2].kind = RowResult::kTokens;
  EXPECT_THAT(refusal_of(output), HasSubstr("not of its kind"));
  output.rows[2].kind = RowResult::kPooled;
  output.rows[2].pooled = {1, 1};
  EXPECT_THAT(refusal_of(output), HasSubstr("pooled points outside"));
}

TEST(SerializeCounts, ATensorHasTheBytesOfItsShape) {
  const auto refusal = [](std::vector<int64_t> shape) {
    ModelRunnerOutput output;
    output.tensors = {{"x", DType::kI32, std::move(shape), std::vector<uint8_t>(24)}};
    return refusal_of(output);
  };
  EXPECT_EQ(refusal({2, 3}), "");
  EXPECT_EQ(refusal({6, 1, 1}), "");
  EXPECT_THAT(refusal({2, 2}), HasSubstr("do not fit their shape"));
  EXPECT_THAT(refusal({6, 0}), HasSubstr("do not fit their shape"));
  EXPECT_THAT(refusal({-2, -3}), HasSubstr("is no shape"));
  EXPECT_THAT(refusal({int64_t{1} << 47, int64_t{1} << 47}), HasSubstr("is no shape"));
}

}  // namespace
}  // namespace warprow
