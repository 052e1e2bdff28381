// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/toy_engine.h"

#include "tests/support/serializing_executor.h"

#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

namespace warprow::testing {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kControl = 3;

struct ToyToken {
  std::string spelling;  // spelling in a byte-level vocabulary
  std::string bytes;
  int32_t type = kNormal;
};

const std::vector<ToyToken>& toy_tokens() {
  static const std::vector<ToyToken> tokens = [] {
    std::vector<ToyToken> list = {{"<eos>", "", kControl}, {"<pad>", "", kControl}};
    const auto add = [&](const std::string& spelling, const std::string& bytes) {
      list.push_back({spelling, bytes});
    };
    for (char c = 'a'; c <= 'z'; ++c) {
      add({c}, {c});
    }
    add("\u0120", " ");
    for (char c = '0'; c <= '9'; ++c) {
      add({c}, {c});
    }
    for (const char* word : {"ab", "stop", "st", "op"}) {
      add(word, word);
    }
    add("\u00c3", "\xc3");
    add("\u00a9", "\xa9");
    add("\u010a", "\n");
    for (const char* part : {"<think>", "</think>", "</", "think", ">", ">a"}) {
      add(part, part);
    }
    for (char c = 'a'; list.size() < kToyVocab; ++c) {
      add(std::string("\u0120") + c, std::string(" ") + c);
    }
    return list;
  }();
  return tokens;
}

}  // namespace

std::string toy_token_bytes(TokenId token) {
  return toy_tokens()[static_cast<size_t>(token)].bytes;
}

TokenId toy_token(std::string_view bytes) {
  const auto found = std::ranges::find(toy_tokens(), bytes, &ToyToken::bytes);
  return static_cast<TokenId>(found - toy_tokens().begin());
}

std::unique_ptr<TextModel> make_toy_text() {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "smollm";
  for (const ToyToken& token : toy_tokens()) {
    vocab.tokens.push_back(token.spelling);
    vocab.types.push_back(token.type);
  }
  vocab.eos = kToyEos;
  Result<Tokenizer> tokenizer = Tokenizer::from_gguf(vocab, "toy");
  return std::make_unique<TextModel>(
      TextModel{value_or_throw(std::move(tokenizer)),
                fail(ErrorCode::kUnsupported, "toy: the model has no chat template"),
                std::nullopt,
                {kToyEos},
                SamplingDefaults{}});
}

RequestId Client::submit(Engine& engine, ValidRequest request) {
  Told* told = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    told = told_.emplace_back(std::make_unique<Told>()).get();
  }
  return engine.submit(std::move(request), [this, told](const RequestUpdate& update) {
    const std::scoped_lock lock(mutex_);
    told->updated_after_final = told->updated_after_final || told->num_final > 0;
    ++told->num_updates;
    told->text += update.text;
    told->token_ids.insert(told->token_ids.end(), update.token_ids.begin(), update.token_ids.end());
    told->logprobs.insert(told->logprobs.end(), update.logprobs.begin(), update.logprobs.end());
    if (update.finish_reason != FinishReason::kNone) {
      told->last = update;
      ++told->num_final;
    }
    changed_.notify_all();
  });
}

RequestId Client::submit(Engine& engine, const GenerationRequest& request) {
  return submit(engine, value_or_throw(engine.validate(request)));
}

const Told& Client::wait(size_t n) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return told_.at(n)->num_final > 0; });
  return *told_[n];
}

void Client::wait_all() {
  for (size_t i = 0; i < size(); ++i) {
    wait(i);
  }
}

void Client::wait_for_tokens(size_t n, size_t num_tokens) {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return told_.at(n)->num_final > 0 || told_[n]->token_ids.size() >= num_tokens; });
}

size_t Client::size() {
  const std::scoped_lock lock(mutex_);
  return told_.size();
}

ToyAnswer toy_answer(const RequestFields& fields) {
  ToyAnswer answer;
  std::vector<TokenId> context = fields.prompt_token_ids;
  const auto has = [](const std::vector<TokenId>& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  while (answer.reason == FinishReason::kNone) {
    const TokenId token = toy_next_token(context, fields.params, kToyVocab);
    context.push_back(token);
    answer.token_ids.push_back(token);
    if (has(fields.eos_token_ids, token)) {
      answer.reason = FinishReason::kStop;
    } else if (has(fields.stop_token_ids, token)) {
      answer.reason = FinishReason::kStop;
      answer.stop_token_id = token;
    } else if (static_cast<int32_t>(answer.token_ids.size()) == fields.max_tokens) {
      answer.reason = FinishReason::kLength;
    }
  }
  return answer;
}

GenerationRequest greedy_request(std::vector<TokenId> prompt, int64_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

GenerationRequest long_request(TokenId first) {
  GenerationRequest request = greedy_request({first, 3, 4}, 100);
  request.sampling.ignore_eos = true;
  return request;
}

GenerationRequest random_toy_request(std::mt19937& random) {
  const auto below = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
  std::vector<TokenId> prompt(static_cast<size_t>(below(3)) * 16, 2 + below(2));
  for (int32_t i = 1 + below(40); i > 0; --i) {
    prompt.push_back(2 + below(kToyVocab - 2));
  }
  GenerationRequest request = greedy_request(std::move(prompt), 1 + below(30));
  if (below(2) == 0) {
    request.sampling.temperature = 0.8;
    request.sampling.seed = below(1000);
  }
  return request;
}

std::unique_ptr<Engine> make_toy_engine(const EngineConfig& config,
                                        const FakeModel& model,
                                        bool serialised) {
  std::unique_ptr<Executor> executor = std::make_unique<FakeExecutor>(model);
  if (serialised) {
    executor = std::make_unique<test::SerializingExecutor>(std::move(executor));
  }
  return make_engine(config, make_toy_text(), std::move(executor));
}

void check_answers(Client& client,
                   Engine& engine,
                   size_t num_requests,
                   const std::function<GenerationRequest()>& make_request,
                   const std::function<void(const Told&, const RequestFields&)>& check) {
  std::vector<RequestFields> fields;
  for (size_t i = 0; i < num_requests; ++i) {
    ValidRequest request = value_or_throw(engine.validate(make_request()));
    fields.push_back(request.fields());
    client.submit(engine, std::move(request));
  }
  for (size_t i = 0; i < num_requests; ++i) {
    SCOPED_TRACE(i);
    check(client.wait(i), fields[i]);
  }
}

}  // namespace warprow::testing
