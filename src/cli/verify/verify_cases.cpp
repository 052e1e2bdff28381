// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/verify_cases.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace warprow {
namespace {

constexpr int64_t kStaggerTokens = 3;    // of all requests, before the next one starts
constexpr int64_t kNeighbourTokens = 5;  // of a neighbour, before it is aborted

bool as_it_is(EngineConfig& /*config*/, const VerifySizes& /*sizes*/) { return true; }

bool few_rows(EngineConfig& config, const VerifySizes& /*sizes*/) {
  config.max_num_seqs = 4;
  return true;
}

bool small_chunks(EngineConfig& config, const VerifySizes& /*sizes*/) {
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 48;
  return config.enable_chunked_prefill;
}

bool prefix_caching(EngineConfig& config, const VerifySizes& /*sizes*/) {
  config.enable_prefix_caching = true;
  return true;
}

// Room for little more than two of the longest requests. A longer max_model_len would not fit. A row has its states from
// its first step on, so with states the room is for those of two rows and little more than one row's keys and values.
// Checkpoints would take blocks too, so the prefix cache is off then.
bool few_blocks(EngineConfig& config, const VerifySizes& sizes) {
  config.max_model_len = static_cast<int32_t>(sizes.max_len + 1);
  const int64_t of_longest = sizes.max_len / config.block_size + 2;
  int64_t blocks = of_longest * 9 / 4 + 1;
  if (sizes.state_blocks > 0) {
    blocks = sizes.state_blocks + of_longest * 9 / 8 + 1;
    config.enable_prefix_caching = false;
  }
  config.kv_cache_memory_bytes = sizes.block_bytes * blocks;
  return true;
}

bool other_blocks(EngineConfig& config, const VerifySizes& /*sizes*/) {
  config.block_size *= 2;
  return config.block_size <= 64 && config.kernel_block_size == 0;
}

// One token in common is enough, and every row drafts, so that many drafts are wrong.
bool drafts(EngineConfig& config, const VerifySizes& sizes) {
  config.speculative_config =
      R"({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,)"
      R"( "prompt_lookup_max": 4, "adaptive": false})";
  config.spec_method.clear();
  config.num_speculative_tokens = 0;
  return sizes.state_blocks == 0;
}

bool no_steps_ahead(EngineConfig& config, const VerifySizes& /*sizes*/) {
  return std::exchange(config.async_scheduling, false);
}

bool no_graphs(EngineConfig& config, const VerifySizes& sizes) {
  return sizes.on_gpu && !std::exchange(config.enforce_eager, true);
}

bool one_thread(EngineConfig& config, const VerifySizes& sizes) {
  return !sizes.on_gpu && std::exchange(config.threads, 1) != 1;
}

int64_t partial_prefills(const EngineStats& stats) { return stats.partial_prefill_steps; }
int64_t prefix_hits(const EngineStats& stats) { return stats.prefix_hit_tokens; }
int64_t preemptions(const EngineStats& stats) { return stats.preemptions; }
int64_t draft_tokens(const EngineStats& stats) { return stats.spec_decode_num_draft_tokens; }

constexpr VerifyCase kCases[] = {
    {"repeat", "alone once more", VerifyOrder::kAlone, as_it_is, nullptr},
    {"batch", "all in one batch", VerifyOrder::kTogether, as_it_is, nullptr},
    {"small-batches", "in batches of 4", VerifyOrder::kTogether, few_rows, nullptr},
    {"arrivals", "each arriving while others run", VerifyOrder::kStaggered, as_it_is, nullptr},
    {"neighbours", "among requests that are aborted", VerifyOrder::kNeighbours, as_it_is, nullptr},
    {"chunks", "in steps of 48 tokens", VerifyOrder::kTogether, small_chunks, partial_prefills},
    {"prefix", "with prefixes from the cache", VerifyOrder::kTwice, prefix_caching, prefix_hits},
    {"preemption", "with too few KV blocks", VerifyOrder::kTogether, few_blocks, preemptions},
    {"block-size", "with blocks of twice the size", VerifyOrder::kTogether, other_blocks, nullptr},
    {"drafts",
     "with drafts from the request's tokens",
     VerifyOrder::kTogether,
     drafts,
     draft_tokens},
    {"sync", "without steps planned ahead", VerifyOrder::kTogether, no_steps_ahead, nullptr},
    {"eager", "without CUDA graphs", VerifyOrder::kTogether, no_graphs, nullptr},
    {"threads", "on one thread", VerifyOrder::kTogether, one_thread, nullptr},
    {"sleep", "after sleep and wake-up", VerifyOrder::kAfterSleep, as_it_is, nullptr},
};

// Requests under way. Updates come on the engine's output thread.
//
// Thread: one, besides the callback.
class Answers {
 public:
  explicit Answers(size_t num_requests) : answers_(num_requests) {}

  void submit(Engine& engine, ValidRequest request, size_t index) {
    ++num_running_;
    engine.submit(std::move(request), [this, index](const RequestUpdate& update) {
      {
        const std::scoped_lock lock(mutex_);
        updates_.emplace_back(index, update);
      }
      changed_.notify_one();
    });
  }
  // Takes one update of a request, and returns the number of its tokens.
  int64_t take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !updates_.empty(); });
    const auto [index, update] = std::move(updates_.front());
    updates_.pop_front();
    lock.unlock();
    VerifyAnswer& answer = answers_[index];
    answer.tokens.insert(answer.tokens.end(), update.token_ids.begin(), update.token_ids.end());
    answer.logprobs.insert(answer.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
    answer.reason = update.finish_reason;
    answer.error = update.error;
    num_running_ -= update.finish_reason == FinishReason::kNone ? 0 : 1;
    return static_cast<int64_t>(update.token_ids.size());
  }
  [[nodiscard]] int64_t num_running() const { return num_running_; }
  std::vector<VerifyAnswer> release() { return std::move(answers_); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<size_t, RequestUpdate>> updates_;  // under mutex_
  std::vector<VerifyAnswer> answers_;
  int64_t num_running_ = 0;
};

// Other requests that run for a few tokens each and are then aborted. The engine may still call back until every one
// has ended.
class Neighbours {
 public:
  void submit(Engine& engine, ValidRequest request) {
    {
      const std::scoped_lock lock(mutex_);
      ++num_running_;
    }
    auto seen = std::make_shared<int64_t>(0);
    engine.submit(std::move(request), [this, &engine, seen](const RequestUpdate& update) {
      *seen += static_cast<int64_t>(update.token_ids.size());
      const std::scoped_lock taken(mutex_);
      num_running_ -= update.finish_reason == FinishReason::kNone ? 0 : 1;
      if (*seen >= kNeighbourTokens && update.finish_reason == FinishReason::kNone) {
        engine.abort(update.id);
      }
      changed_.notify_one();
    });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_running_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_running_ = 0;  // under mutex_
};

// As the requests, with other tokens.
Result<ValidRequest> neighbour_of(Engine& engine, GenerationRequest request) {
  const TokenId vocab_size = engine.model_facts().vocab_size;
  for (TokenId& token : std::get<std::vector<TokenId>>(request.prompt)) {
    token = (token + 1) % vocab_size;
  }
  return engine.validate(request);
}

}  // namespace

std::span<const VerifyCase> verify_cases() { return kCases; }

EngineConfig reference_config(EngineConfig config, const VerifySizes& /*sizes*/) {
  config.enable_prefix_caching = false;
  config.speculative_config.clear();
  config.spec_method.clear();
  config.num_speculative_tokens = 0;
  return config;
}

Result<std::vector<VerifyAnswer>> run_case(Engine& engine,
                                           VerifyOrder order,
                                           const std::vector<GenerationRequest>& requests,
                                           const std::function<void(int64_t)>& on_tokens) {
  if (order == VerifyOrder::kTwice) {
    if (auto first = run_case(engine, VerifyOrder::kTogether, requests, on_tokens); !first) {
      return first;
    }
  }
  if (order == VerifyOrder::kAfterSleep) {
    if (auto slept = engine.sleep(1); !slept) {
      return tl::unexpected(slept.error());
    }
    if (auto woken = engine.wake_up({}); !woken) {
      return tl::unexpected(woken.error());
    }
  }
  const bool has_neighbours = order == VerifyOrder::kNeighbours;
  Neighbours neighbours;
  Answers answers(requests.size());
  const auto take = [&] {
    const int64_t num_tokens = answers.take();
    on_tokens(num_tokens);
    return num_tokens;
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    Result<ValidRequest> valid = engine.validate(requests[i]);
    Result<ValidRequest> other = has_neighbours ? neighbour_of(engine, requests[i]) : valid;
    if (!valid || !other) {
      return tl::unexpected(valid ? other.error() : valid.error());
    }
    if (has_neighbours) {
      neighbours.submit(engine, *std::move(other));
    }
    answers.submit(engine, *std::move(valid), i);
    int64_t num_tokens = 0;
    while ((order == VerifyOrder::kAlone && answers.num_running() > 0) ||
           (order == VerifyOrder::kStaggered && num_tokens < kStaggerTokens &&
            answers.num_running() > 0)) {
      num_tokens += take();
    }
  }
  while (answers.num_running() > 0) {
    take();
  }
  neighbours.wait();
  return answers.release();
}

}  // namespace warprow
