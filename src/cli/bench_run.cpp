// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>

namespace warprow {
namespace {

std::vector<TokenId> random_prompt(std::mt19937_64& random, int64_t length, int32_t vocab_size) {
  std::vector<TokenId> ids(static_cast<size_t>(length));
  for (TokenId& id : ids) {
    id = static_cast<TokenId>(random() % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

// Counts requests down to the last; the engine's output thread counts, the bench waits.
class Countdown {
 public:
  explicit Countdown(size_t count) : left_(count) {}
  void done() {
    const std::scoped_lock lock(mutex_);
    --left_;
    changed_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_;
};

}  // namespace

Result<BenchRun> BenchRun::prepare(Engine& engine, const BenchLoad& load) {
  std::mt19937_64 random(load.seed);
  std::vector<ValidRequest> requests;
  for (int64_t i = 0; i < load.num_prompts; ++i) {
    GenerationRequest request;
    request.prompt = random_prompt(random, load.input_len, engine.model_facts().vocab_size);
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = load.output_len;
    request.sampling.ignore_eos = true;
    Result<ValidRequest> valid = engine.validate(request);
    if (!valid) {
      return tl::unexpected(valid.error());
    }
    if (valid->fields().max_tokens != load.output_len) {
      return fail(ErrorCode::kInvalidArgument,
                  "input-len and output-len together are longer than the model's context");
    }
    requests.push_back(std::move(*valid));
  }
  return BenchRun(engine, std::move(requests));
}

double BenchRun::run() {
  Countdown countdown(requests_.size());
  const auto start = std::chrono::steady_clock::now();
  for (const ValidRequest& request : requests_) {
    engine_->submit(request, [&countdown](const RequestUpdate& update) {
      if (update.finish_reason != FinishReason::kNone) {
        countdown.done();
      }
    });
  }
  countdown.wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const double at = p / 100.0 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

}  // namespace warprow
