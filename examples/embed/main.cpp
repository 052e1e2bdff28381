// SPDX-License-Identifier: Apache-2.0
// The engine inside a program of your own: load a model, submit requests, take their texts as they come.
//
// usage: embed MODEL PROMPT...     each prompt is a request; all run in one batch
#include "base/error.h"
#include "engine/engine.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

// What the requests' callbacks leave for main.
//
// Thread: any. Outlives the engine.
class Answers {
 public:
  explicit Answers(size_t count) : texts_(count), num_running_(count) {}

  // Called on the engine's output thread, so it only keeps the text.
  void take(size_t index, const warprow::RequestUpdate& update) {
    const std::lock_guard lock(mutex_);
    texts_[index] += update.text;
    if (update.finish_reason != warprow::FinishReason::kNone) {
      texts_[index] += std::string(" [") + warprow::finish_reason_name(update.finish_reason) + "]";
      if (!update.error.empty()) {
        texts_[index] += " " + update.error;
      }
      --num_running_;
      all_done_.notify_one();
    }
  }

  std::vector<std::string> wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [this] { return num_running_ == 0; });
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::vector<std::string> texts_;  // under mutex_
  size_t num_running_;              // under mutex_
};

int run(const std::string& model, const std::vector<std::string>& prompts) {
  warprow::EngineConfig config;
  config.model = model;
  config.kv_cache_memory_bytes = int64_t{256} << 20;

  // Validation says why a request is refused, before any of it runs.
  Answers answers(prompts.size());
  const std::unique_ptr<warprow::Engine> engine = warprow::load_engine(config);
  std::vector<warprow::ValidRequest> requests;
  for (const std::string& prompt : prompts) {
    warprow::GenerationRequest request;
    request.prompt = prompt;  // or a list of ChatMessage, or token ids
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 32;
    warprow::Result<warprow::ValidRequest> valid = engine->validate(request);
    if (!valid) {
      std::fprintf(stderr, "refused: %s\n", valid.error().message.c_str());
      return 2;
    }
    requests.push_back(*std::move(valid));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    engine->submit(std::move(requests[i]), [&answers, i](const warprow::RequestUpdate& update) {
      answers.take(i, update);
    });
  }
  const std::vector<std::string> texts = answers.wait();
  for (size_t i = 0; i < texts.size(); ++i) {
    std::printf("%s%s\n", prompts[i].c_str(), texts[i].c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: embed MODEL PROMPT...\n");
    return 2;
  }
  try {
    return run(argv[1], {argv + 2, argv + argc});
  } catch (
      const warprow::StartupError& error) {  // no such model, too little memory, a damaged file
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "internal error: %s\n", error.what());
    return 5;
  }
}
