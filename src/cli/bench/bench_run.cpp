// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Counts the unfinished requests. The engine's output thread counts down, and the bench waits for 0.
class Countdown {
 public:
  explicit Countdown(size_t count) : left_(count) {}
  void take(const RequestUpdate& update) {
    if (update.finish_reason == FinishReason::kNone) {
      return;
    }
    const std::scoped_lock lock(mutex_);
    if (update.finish_reason == FinishReason::kError) {
      error_ = update.error;
    }
    --left_;
    changed_.notify_one();
  }
  // Returns the error of a failed request, or "".
  std::string wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_;
  std::string error_;
};

}  // namespace

Result<std::vector<ValidRequest>> BenchRun::draw_requests(int64_t output_len) {
  const auto vocab_size = static_cast<uint64_t>(engine_->model_facts().vocab_size);
  const std::vector<LoadedAdapter> adapters = engine_->adapters();
  std::vector<ValidRequest> requests;
  for (int64_t i = 0; i < load_.num_prompts; ++i) {
    std::vector<TokenId> ids(static_cast<size_t>(load_.input_len));
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(random_() % vocab_size);
    }
    GenerationRequest request;
    request.prompt = std::move(ids);
    request.sampling = load_.sampling;
    if (!adapters.empty()) {
      request.adapter = adapters[static_cast<size_t>(i) % adapters.size()].name;
    }
    request.sampling.temperature = load_.sampling.temperature.value_or(0.0);
    request.sampling.max_tokens = output_len;
    request.sampling.ignore_eos = true;
    Result<ValidRequest> valid = engine_->validate(request);
    if (!valid) {
      return tl::unexpected(valid.error());
    }
    if (valid->fields().max_tokens != output_len) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("input-len {} and output-len {} together are longer than the model's "
                              "context of {}",
                              load_.input_len,
                              output_len,
                              engine_->model_facts().max_model_len));
    }
    for (ValidRequest& choice : split_choices(*valid)) {
      requests.push_back(std::move(choice));
    }
  }
  return requests;
}

Result<double> BenchRun::run(int64_t output_len) {
  Result<std::vector<ValidRequest>> requests = draw_requests(output_len);
  if (!requests) {
    return tl::unexpected(requests.error());
  }
  Countdown countdown(requests->size());
  const auto start = std::chrono::steady_clock::now();
  for (ValidRequest& request : *requests) {
    engine_->submit(std::move(request),
                    [&countdown](const RequestUpdate& update) { countdown.take(update); });
  }
  const std::string error = countdown.wait();
  const auto end = std::chrono::steady_clock::now();
  if (!error.empty()) {
    return fail(ErrorCode::kInternal, error);
  }
  return std::chrono::duration<double>(end - start).count();
}

double percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const double at = p / 100.0 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace warprow
