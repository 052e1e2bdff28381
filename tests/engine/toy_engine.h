// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "tests/engine/fake_executor.h"
#include "text/text_model.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warprow::testing {

inline constexpr TokenId kToyEos = 0;
inline constexpr int32_t kToyVocab = 64;

// The bytes of each of the 64 toy tokens: <eos> and <pad>, letters, space, digits, "ab", "stop", "st", "op", the two
// halves of "é", a newline, the tags of thinking sections as one token and in parts, and a space followed by a letter.
std::string toy_token_bytes(TokenId token);
// The token with these bytes.
TokenId toy_token(std::string_view bytes);
// A byte-level text model over the toy tokens, without merges or chat template.
std::unique_ptr<TextModel> make_toy_text();

// All updates that a client has received for one request.
struct Told {
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<LogprobEntry> logprobs;
  RequestUpdate last;  // the update with the finish reason
  int32_t num_updates = 0;
  int32_t num_final = 0;
  bool updated_after_final = false;
};

// A client that records its updates. Must outlive the engine to which it submits.
//
// Thread: any.
class Client {
 public:
  RequestId submit(Engine& engine, ValidRequest request);
  // Validates and submits; validation must succeed.
  RequestId submit(Engine& engine, const GenerationRequest& request);
  // Waits for the final update of the n-th request.
  const Told& wait(size_t n);
  void wait_all();
  // Waits until the n-th request has received at least num_tokens tokens, or has ended.
  void wait_for_tokens(size_t n, size_t num_tokens);
  [[nodiscard]] size_t size();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Told>> told_;
};

// The toy model's answer to a valid request, computed in a simple loop.
struct ToyAnswer {
  std::vector<TokenId> token_ids;
  FinishReason reason = FinishReason::kNone;
  TokenId stop_token_id = -1;
};
ToyAnswer toy_answer(const RequestFields& fields);

GenerationRequest greedy_request(std::vector<TokenId> prompt, int64_t max_tokens);
// 100 tokens, whatever the model says.
GenerationRequest long_request(TokenId first = 9);

// A greedy or sampled request. A few prompts share a prefix, for the prefix cache.
GenerationRequest random_toy_request(std::mt19937& random);

// serialised: messages to and from the executor are serialised and deserialised.
std::unique_ptr<Engine> make_toy_engine(const EngineConfig& config,
                                        const FakeModel& model,
                                        bool serialised = false);

// Submits the requests without waiting, then checks the updates of each against the fields of the valid request.
// `client` must be new.
void check_answers(Client& client,
                   Engine& engine,
                   size_t num_requests,
                   const std::function<GenerationRequest()>& make_request,
                   const std::function<void(const Told&, const RequestFields&)>& check);

}  // namespace warprow::testing
