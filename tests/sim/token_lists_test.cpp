// SPDX-License-Identifier: Apache-2.0
// Token lists from the client's text to the answer, with a real model whose tokens are bytes.
#include "engine/engine.h"
#include "executor/make_executor.h"
#include "tests/support/source_path.h"
#include "text/byte_text.h"
#include "text/text_model.h"

#include <algorithm>
#include <cctype>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenListsOfRequests : public ::testing::Test {
 protected:
  struct Answered {
    std::vector<TokenId> tokens{};
    FinishReason reason = FinishReason::kNone;
    std::string error{};
  };

  TokenListsOfRequests() {
    EngineConfig config;
    config.model = test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf");
    config.device = "cpu";
    config.dtype = "float32";
    config.threads = 1;
    config.max_model_len = 128;
    config.max_num_seqs = 2;
    config.kv_cache_memory_bytes = 1 << 20;
    engine_ = make_engine(config, value_or_throw(make_byte_text()), make_executor(config));
  }

  static GenerationRequest request_with(const std::function<void(SamplingOptions&)>& set) {
    GenerationRequest request;
    request.prompt = std::vector<TokenId>{3, 44, 5, 96};
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = 20;
    set(request.sampling);
    return request;
  }

  void submit(const GenerationRequest& request, Answered& answered) {
    ++num_open_;
    engine_->submit(value_or_throw(engine_->validate(request)), [&](const RequestUpdate& update) {
      const std::scoped_lock lock(mutex_);
      answered.tokens.insert(
          answered.tokens.end(), update.token_ids.begin(), update.token_ids.end());
      answered.reason = update.finish_reason;
      answered.error = update.error;
      num_open_ -= update.finish_reason != FinishReason::kNone ? 1 : 0;
      changed_.notify_one();
    });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_open_ == 0; });
  }
  Answered answer(const std::function<void(SamplingOptions&)>& set) {
    Answered answered;
    submit(request_with(set), answered);
    wait();
    return answered;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_open_ = 0;
  std::unique_ptr<Engine> engine_;
};

TEST_F(TokenListsOfRequests, HoldForTheirRequestAndNotForTheRowsNext) {
  const auto nothing = [](SamplingOptions&) {};
  const std::vector<TokenId> plain = answer(nothing).tokens;
  EXPECT_THAT(answer([](auto& o) { o.allowed_token_ids = {{65, 70}}; }).tokens,
              Each(::testing::AnyOf(65, 70)));
  EXPECT_THAT(answer([](auto& o) { o.logit_bias = {{65, 100}}; }).tokens, Each(65));
  const auto visible =
      std::find_if(plain.begin(), plain.end(), [](TokenId id) { return std::isgraph(id) != 0; });
  ASSERT_NE(visible, plain.end());
  const std::string word(1, static_cast<char>(*visible));
  EXPECT_THAT(answer([&](auto& o) { o.bad_words = {word}; }).tokens, Not(Contains(*visible)));
  EXPECT_EQ(answer(nothing).tokens, plain);
}

TEST_F(TokenListsOfRequests, NothingLeftEndsTheRequestAloneAndSaysWhy) {
  const std::vector<TokenId> plain = answer([](SamplingOptions&) {}).tokens;
  Answered other;
  Answered failed;
  submit(request_with([](SamplingOptions&) {}), other);
  submit(request_with([](SamplingOptions& o) {
           o.allowed_token_ids = {{65}};
           o.stop_token_ids = {65};
           o.min_tokens = 3;
         }),
         failed);
  wait();
  EXPECT_EQ(other.tokens, plain);
  EXPECT_EQ(failed.reason, FinishReason::kError);
  EXPECT_TRUE(failed.tokens.empty());
  EXPECT_THAT(failed.error, HasSubstr("the request's constraints (allowed_token_ids, bad_words"));
}

}  // namespace
}  // namespace warprow
