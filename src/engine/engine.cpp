// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include "base/check.h"
#include "engine/adapters.h"
#include "engine/bad_words.h"
#include "engine/encode_prompt.h"
#include "engine/engine_control.h"
#include "engine/engine_loop.h"
#include "engine/grammar_source.h"
#include "engine/inbox.h"
#include "engine/output_loop.h"
#include "engine/output_queue.h"
#include "engine/scheduler_settings.h"
#include "text/text_model.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr const char* kStopped = "the engine has stopped";
constexpr std::chrono::milliseconds kLookAgain{2};  // whether an adapter is loaded

RequestLimits request_limits(const EngineConfig& config,
                             const ModelFacts& facts,
                             const TextModel& text) {
  RequestLimits limits;
  limits.vocab_size = facts.vocab_size;
  limits.max_model_len = facts.max_model_len;
  limits.eos_token_ids = text.eos;
  limits.has_hidden_states = facts.has_hidden_states;
  limits.prompt_embeds_width = facts.prompt_embeds_width;
  limits.has_priorities = config.scheduling_policy == "priority";
  limits.max_logprobs = config.max_logprobs;
  limits.pooling = facts.pooling;
  limits.defaults.temperature = text.sampling.temperature;
  limits.defaults.top_p = text.sampling.top_p;
  limits.defaults.min_p = text.sampling.min_p;
  limits.defaults.top_k = text.sampling.top_k;
  limits.defaults.repetition_penalty = text.sampling.repetition_penalty;
  limits.defaults.max_tokens = text.sampling.max_new_tokens;
  return limits;
}

// The scheduler's part of a request; what is left is the output thread's.
Request to_request(RequestId id, RequestFields&& fields) {
  Request request;
  request.id = id;
  request.prompt = std::move(fields.prompt_token_ids);
  request.embeds = std::move(fields.embeds);
  request.params = fields.params;
  request.max_tokens = fields.max_tokens;
  request.eos_token_ids = std::move(fields.eos_token_ids);
  request.stop_token_ids = std::move(fields.stop_token_ids);
  request.token_lists = std::move(fields.token_lists);
  request.priority = fields.priority;
  request.cache_salt = fields.cache_salt;
  request.may_draft = fields.speculate;
  request.copies_tail = fields.copies_tail;
  request.adapter = fields.adapter;
  return request;
}

// The n-th value of the splitmix64 sequence (Steele, Lea, Flood: "Fast splittable pseudorandom
// number generators").
uint64_t draw_seed(uint64_t engine_seed, uint64_t n) {
  uint64_t z = engine_seed + (n + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// Owns: everything below submit. Thread: see Engine.
// Invariant: a request is known to the output thread before the engine thread sees it.
class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineConfig& config,
             std::unique_ptr<TextModel> text,
             std::unique_ptr<Executor> executor)
      : seed_(config.seed),
        text_(std::move(text)),
        executor_(std::move(executor)),
        facts_(executor_->model_facts()),
        limits_(request_limits(config, facts_, *text_)),
        grammars_(*text_),
        outputs_(static_cast<size_t>(facts_.max_num_seqs)),
        loop_(config,
              scheduler_config(config, facts_, executor_->max_concurrent_batches()),
              target_step_us(config, facts_),
              *executor_,
              inbox_,
              outputs_),
        control_(*executor_, loop_, config.model),
        adapters_(*executor_, loop_.scheduler(), facts_),
        output_loop_(outputs_, inbox_),
        engine_thread_([this] { loop_.run(); }),
        output_thread_([this] { output_loop_.run(); }) {
    limits_.adapters = &adapters_;
  }

  ~EngineImpl() override {
    inbox_.close();
    engine_thread_.join();
    outputs_.close();
    output_thread_.join();
  }

  [[nodiscard]] const ModelFacts& model_facts() const override { return facts_; }
  [[nodiscard]] const TextModel& text() const override { return *text_; }

  [[nodiscard]] Result<ValidRequest> validate(const GenerationRequest& request) const override {
    if (Result<void> checked = check_request(request); !checked) {
      return tl::unexpected(std::move(checked).error());
    }
    Result<std::vector<TokenId>> prompt = encode_prompt(request, *text_);
    if (!prompt) {
      return tl::unexpected(std::move(prompt).error());
    }
    return admit(request, {*std::move(prompt)}).map([](std::vector<ValidRequest> valid) {
      return std::move(valid.front());
    });
  }

  [[nodiscard]] Result<std::vector<ValidRequest>> validate_prompts(
      const GenerationRequest& request, std::vector<std::vector<TokenId>> prompts) const override {
    return check_request(request).and_then([&] { return admit(request, std::move(prompts)); });
  }

  [[nodiscard]] Result<ValidRequest> validate_pooling(
      const PoolingRequest& request) const override {
    if (control_.state().weights_gone()) {
      return fail(ErrorCode::kUnsupported, kWeightsAreGone);
    }
    const auto* text = std::get_if<std::string>(&request.prompt);
    std::vector<TokenId> ids = text != nullptr ? text_->tokenizer.encode(*text, true)
                                               : std::get<std::vector<TokenId>>(request.prompt);
    Result<ValidRequest> valid = validate_pooling_request(request, std::move(ids), limits_);
    if (!valid) {
      return valid;
    }
    const auto prompt_len = static_cast<int64_t>(valid->prompt_token_ids().size());
    return loop_.check(prompt_len, valid->fields().max_tokens).map([&] {
      return *std::move(valid);
    });
  }

  RequestId submit(ValidRequest request, UpdateCallback on_update) override {
    const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
    RequestFields fields = std::move(request).take();
    WR_CHECK(fields.num_choices == 1, "a request for several choices is not split");
    if (!fields.seed) {
      fields.params.seed = draw_seed(seed_, id);
    }
    outputs_.add(
        std::make_unique<RequestOutput>(id, fields, text_->tokenizer, std::move(on_update)));
    std::optional<Grammar> grammar = std::move(fields.grammar);
    // Refused after the engine's end; the output thread then ends the request.
    inbox_.submit({to_request(id, std::move(fields)), std::move(grammar)});
    return id;
  }

  void abort(RequestId id) override { inbox_.abort(id); }
  [[nodiscard]] EngineStats stats() const override { return loop_.record().stats(); }

  [[nodiscard]] std::vector<RankStatus> ranks() const override { return loop_.record().ranks(); }
  [[nodiscard]] EngineProgress progress() const override { return loop_.record().progress(); }
  [[nodiscard]] const StepLog& steps() const override { return loop_.record().steps(); }
  [[nodiscard]] std::optional<RequestHistory> history(RequestId id) const override {
    return loop_.requests().find(id);
  }
  [[nodiscard]] const MaskLog& mask_fills() const override { return loop_.mask_fills(); }

  [[nodiscard]] std::optional<std::vector<RequestStatus>> list_requests(
      std::chrono::milliseconds patience) override {
    auto list = run_task([this] { return control_.list_requests(); });
    if (!list || list->wait_for(patience) != std::future_status::ready) {
      return std::nullopt;
    }
    return value_of(*list);
  }
  Result<void> reset_prefix_cache() override {
    return call([this] { return control_.reset_prefix_cache(); });
  }

  Result<std::vector<std::string>> sleep(int level) override {
    if (level != 1 && level != 2) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("sleep: level {} is neither 1 nor 2", level));
    }
    return call([this, level] { return control_.sleep(level); });
  }
  Result<std::vector<std::string>> wake_up(const std::vector<std::string>& tags) override {
    Result<std::string> joined = SleepState::join_tags(tags);
    if (!joined) {
      return tl::unexpected(std::move(joined).error());
    }
    return call([this, tags = *std::move(joined)] { return control_.wake_up(tags); });
  }
  [[nodiscard]] bool is_sleeping() const override { return !control_.state().awake(); }

  // Polls, so that the engine thread does not wait for the ranks, which read the adapter on threads of their own.
  Result<void> load_adapter(const std::string& name, const std::string& path) override {
    const Result<int32_t> id = call([this, name, path] { return adapters_.begin(name, path); });
    if (!id) {
      return tl::unexpected(id.error());
    }
    Result<bool> loaded = false;
    while (loaded && !*loaded) {
      loaded = call([this, id = *id] { return adapters_.poll(id); });
      if (loaded && !*loaded) {
        std::this_thread::sleep_for(kLookAgain);
      }
    }
    return loaded.map([](bool) {});
  }
  Result<void> unload_adapter(const std::string& name) override {
    return call([this, name] { return adapters_.unload(name); });
  }
  [[nodiscard]] std::vector<LoadedAdapter> adapters() const override { return adapters_.list(); }

  Result<void> pause(PauseMode mode) override {
    if (mode != PauseMode::kWait) {
      return call([this, mode] { return control_.pause(mode == PauseMode::kKeep); });
    }
    Result<bool> paused = call([this] { return control_.begin_drain(); });
    while (paused && !*paused) {
      paused = call([this] { return control_.poll_drain(); });
      if (paused && !*paused) {
        std::this_thread::sleep_for(kLookAgain);
      }
    }
    return paused.map([](bool) {});
  }
  Result<void> resume() override {
    return call([this] { return control_.resume(); });
  }
  [[nodiscard]] bool is_paused() const override { return control_.paused(); }
  Result<void> update_weights(const std::string& model) override {
    return call([this, model] { return control_.update_weights(model); });
  }

 private:
  // Runs before anything is encoded or compiled for the request.
  [[nodiscard]] Result<void> check_request(const GenerationRequest& request) const {
    if (control_.state().weights_gone()) {
      return fail(ErrorCode::kUnsupported, kWeightsAreGone);
    }
    return check_without_prompt(request, limits_);
  }
  [[nodiscard]] Result<std::vector<ValidRequest>> admit(
      const GenerationRequest& request, std::vector<std::vector<TokenId>> prompts) const;
  // Runs `work` on the engine thread between two steps; nullopt after that thread's end.
  template <typename Work>
  auto run_task(Work work) -> std::optional<std::future<decltype(work())>> {
    auto promise = std::make_shared<std::promise<decltype(work())>>();
    auto future = promise->get_future();
    if (!inbox_.send([promise, work = std::move(work)] { promise->set_value(work()); })) {
      return std::nullopt;
    }
    return future;
  }
  // nullopt: the engine ended before it ran the task.
  template <typename T>
  static std::optional<T> value_of(std::future<T>& future) {
    try {
      return future.get();
    } catch (const std::future_error&) {
      return std::nullopt;
    }
  }

  // Waits for the engine thread to do `work`, which yields a Result.
  template <typename Work>
  auto call(Work work) -> decltype(work()) {
    auto done = run_task(std::move(work));
    auto result = done ? value_of(*done) : std::nullopt;
    return result.value_or(fail(ErrorCode::kInternal, kStopped));
  }

  uint64_t seed_;
  std::unique_ptr<TextModel> text_;
  std::unique_ptr<Executor> executor_;
  ModelFacts facts_;
  RequestLimits limits_;
  mutable GrammarSource grammars_;  // safe from any thread
  Inbox inbox_;
  OutputQueue outputs_;
  EngineLoop loop_;
  EngineControl control_;
  Adapters adapters_;
  OutputLoop output_loop_;
  std::atomic<RequestId> next_id_{1};
  std::thread engine_thread_;  // last: they use all members above
  std::thread output_thread_;
};

Result<std::vector<ValidRequest>> EngineImpl::admit(
    const GenerationRequest& request, std::vector<std::vector<TokenId>> prompts) const {
  std::optional<Grammar> grammar;
  if (request.sampling.structured_output) {
    Result<Grammar> compiled = grammars_.compile(*request.sampling.structured_output);
    if (!compiled) {
      return tl::unexpected(std::move(compiled).error());
    }
    grammar = *std::move(compiled);
  }
  const std::vector<std::vector<TokenId>> bad_words =
      encode_bad_words(request.sampling.bad_words, text_->tokenizer);
  std::vector<ValidRequest> out;
  WR_CHECK(request.embeds.empty() || request.embeds.size() == prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto prompt_len = static_cast<int64_t>(prompts[i].size());
    Result<ValidRequest> valid =
        validate_request(request,
                         std::move(prompts[i]),
                         limits_,
                         bad_words,
                         grammar,
                         request.embeds.empty() ? nullptr : request.embeds[i]);
    if (!valid) {
      return tl::unexpected(std::move(valid).error());
    }
    if (Result<void> fits = loop_.check(prompt_len, valid->fields().max_tokens); !fits) {
      return tl::unexpected(std::move(fits).error());
    }
    out.push_back(*std::move(valid));
  }
  return out;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

std::unique_ptr<Engine> make_engine(const EngineConfig& config,
                                    std::unique_ptr<TextModel> text,
                                    std::unique_ptr<Executor> executor) {
  return std::make_unique<EngineImpl>(config, std::move(text), std::move(executor));
}

}  // namespace warprow
