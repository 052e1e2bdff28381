// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/verify_load.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int64_t kMaxCommonPrefix = 64;

int64_t draw_length(std::mt19937_64& random, int64_t max_len) {
  const double share = static_cast<double>(random() >> 11) * 0x1p-53;
  return std::clamp<int64_t>(
      std::llround(std::pow(static_cast<double>(max_len), share)), 1, max_len);
}

void draw_tokens(std::mt19937_64& random,
                 uint64_t vocab_size,
                 size_t len,
                 std::vector<TokenId>& out) {
  while (out.size() < len) {
    out.push_back(static_cast<TokenId>(random() % vocab_size));
  }
}

bool is_same_answer(const LogprobEntry& a, const LogprobEntry& b) {
  const auto is_same_token = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token_id == y.token_id && x.logprob == y.logprob;
  };
  return a.token_id == b.token_id && a.logprob == b.logprob && a.rank == b.rank &&
         std::ranges::equal(a.top, b.top, is_same_token);
}

}  // namespace

std::vector<GenerationRequest> draw_requests(const VerifyLoad& load, int32_t vocab_size) {
  // NOLINTNEXTLINE(bugprone-random-generator-seed): runs are reproducible
  std::mt19937_64 random(static_cast<uint64_t>(load.seed));
  const auto vocab = static_cast<uint64_t>(vocab_size);
  std::vector<TokenId> prefix;
  draw_tokens(random,
              vocab,
              static_cast<size_t>(std::min(kMaxCommonPrefix, load.max_input_len / 2)),
              prefix);
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < load.num_requests; ++i) {
    GenerationRequest& request = requests.emplace_back();
    auto len = static_cast<size_t>(draw_length(random, load.max_input_len));
    std::vector<TokenId> prompt;
    if (i % 3 == 1) {
      prompt = prefix;
      len = std::max(len, prefix.size() + 1);
    }
    draw_tokens(random, vocab, len, prompt);
    request.prompt = std::move(prompt);
    SamplingOptions& sampling = request.sampling;
    sampling.max_tokens = load.output_len;
    sampling.ignore_eos = true;
    sampling.temperature = 0.0;
    if (i % 2 == 1) {
      sampling.temperature = 0.9;
      sampling.seed = static_cast<int64_t>(random() % 1000);
      sampling.top_p = 0.95;
      sampling.top_k = i % 4 == 1 ? 40 : 0;
    }
    if (i % 5 == 3) {
      sampling.repetition_penalty = 1.2;
      sampling.presence_penalty = 0.4;
    }
    if (i % 3 == 0) {
      sampling.logprobs = 5;
    }
  }
  return requests;
}

std::string difference(const VerifyAnswer& expected, const VerifyAnswer& got) {
  if (!got.error.empty() || !expected.error.empty()) {
    return fmt::format("failed: {}", got.error.empty() ? expected.error : got.error);
  }
  const size_t num_common = std::min(expected.tokens.size(), got.tokens.size());
  for (size_t i = 0; i < num_common; ++i) {
    if (expected.tokens[i] != got.tokens[i]) {
      return fmt::format("token {} is {} instead of {}", i, got.tokens[i], expected.tokens[i]);
    }
    if (i < expected.logprobs.size() && i < got.logprobs.size() &&
        !is_same_answer(expected.logprobs[i], got.logprobs[i])) {
      return fmt::format("the logprobs of token {} differ: {:.9g} instead of {:.9g}",
                         i,
                         got.logprobs[i].logprob,
                         expected.logprobs[i].logprob);
    }
  }
  if (expected.tokens.size() != got.tokens.size()) {
    return fmt::format("{} tokens instead of {}", got.tokens.size(), expected.tokens.size());
  }
  if (expected.logprobs.size() != got.logprobs.size()) {
    return fmt::format("{} logprobs instead of {}", got.logprobs.size(), expected.logprobs.size());
  }
  return expected.reason == got.reason ? "" : "another finish reason";
}

}  // namespace warprow
