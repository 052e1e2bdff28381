// SPDX-License-Identifier: Apache-2.0
#include "engine/output_queue.h"

#include "tests/engine/toy_engine.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace warprow {
namespace {

OutputDelta delta_of(RequestId id, Span32 tokens = {}) {
  OutputDelta delta;
  delta.id = id;
  delta.tokens = tokens;
  return delta;
}

ModelRunnerOutput step_with_logprobs() {
  ModelRunnerOutput step;
  step.token_ids = {10, 11, 12};
  step.has_logprobs = true;
  step.logprobs = {{-1.0F, 1, {0, 1}}, {0.0F, 0, {}}, {-3.0F, 3, {1, 2}}};
  step.top_ids = {20, 21, 22};
  step.top_logprobs = {-0.5F, -0.25F, -0.125F};
  return step;
}

TEST(OutputBatch, KeepsTokensAndLogprobsTogetherWhenAppended) {
  const ModelRunnerOutput step = step_with_logprobs();
  OutputBatch first;
  first.copy_from(step, first.deltas.emplace_back(delta_of(1, {2, 1})));
  OutputBatch second;
  second.copy_from(step, second.deltas.emplace_back(delta_of(2, {0, 1})));
  second.deltas.push_back(delta_of(3));  // an abort has no tokens
  first.append(second);
  EXPECT_TRUE(second.deltas.empty());
  EXPECT_TRUE(second.token_ids.empty());

  ASSERT_EQ(first.deltas.size(), 3U);
  EXPECT_EQ(first.tokens_of(first.deltas[0])[0], 12);
  EXPECT_EQ(first.tokens_of(first.deltas[1])[0], 10);
  EXPECT_TRUE(first.tokens_of(first.deltas[2]).empty());
  EXPECT_EQ(first.deltas[2].logprobs_at, -1);
  const TokenLogprobs& one = first.logprobs[static_cast<size_t>(first.deltas[0].logprobs_at)];
  EXPECT_EQ(one.logprob, -3.0F);
  EXPECT_EQ(one.top, (Span32{0, 2}));
  const TokenLogprobs& two = first.logprobs[static_cast<size_t>(first.deltas[1].logprobs_at)];
  EXPECT_EQ(two.rank, 1);
  EXPECT_EQ(two.top, (Span32{2, 1}));
  EXPECT_EQ(first.top_ids, (std::vector<TokenId>{21, 22, 20}));
  EXPECT_EQ(first.top_logprobs, (std::vector<float>{-0.25F, -0.125F, -0.5F}));
}

TEST(OutputQueue, HandsOutInOrderAndEndsWhenClosed) {
  OutputQueue queue(8);
  OutputBatch batch;
  for (RequestId id = 1; id <= 3; ++id) {
    batch.deltas.push_back(delta_of(id));
    queue.publish(batch);
    EXPECT_TRUE(batch.deltas.empty());
  }
  queue.close();
  OutputWork work;
  ASSERT_TRUE(queue.take(work));
  ASSERT_EQ(work.batch.deltas.size(), 3U);
  EXPECT_EQ(work.batch.deltas[2].id, 3U);
  EXPECT_FALSE(queue.take(work));
}

TEST(OutputQueue, PublisherWaitsForASlowReader) {
  OutputQueue queue(1);
  std::atomic<size_t> num_published = 0;
  constexpr size_t kDeltas = OutputQueue::kMaxPending + 100;
  std::thread publisher([&] {
    OutputBatch batch;
    for (size_t i = 0; i < kDeltas; ++i) {
      batch.deltas.push_back(delta_of(i));
      queue.publish(batch);
      ++num_published;
    }
    queue.close();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LE(num_published, OutputQueue::kMaxPending);
  OutputWork work;
  size_t num_taken = 0;
  while (queue.take(work)) {
    for (const OutputDelta& delta : work.batch.deltas) {
      EXPECT_EQ(delta.id, num_taken);
      ++num_taken;
    }
  }
  publisher.join();
  EXPECT_EQ(num_taken, kDeltas);
}

TEST(OutputQueue, RequestsAddedAfterTheEndAreHandedOut) {
  const std::unique_ptr<TextModel> text = testing::make_toy_text();
  OutputQueue queue(1);
  queue.end({FinishReason::kError, "gone"});
  OutputWork work;
  ASSERT_TRUE(queue.take(work));
  EXPECT_EQ(work.end.error, "gone");
  queue.add(std::make_unique<RequestOutput>(
      5, RequestFields{}, text->tokenizer, [](const RequestUpdate&) {}));
  ASSERT_TRUE(queue.take(work));
  ASSERT_EQ(work.arrivals.size(), 1U);
  EXPECT_EQ(work.end.reason, FinishReason::kError);
}

}  // namespace
}  // namespace warprow
