// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace warprow {

// An engine without a model. A text's tokens are its bytes. The answer to a prompt is "<prompt>", or "<prompt:seed>"
// for a request with a seed, in pieces of one byte, cut at max_tokens. With out_of_order every second request is held
// until the next one is answered, so answers arrive out of order; release() answers a request that is still held. Some
// words in a prompt select a failure: with "hang" the request starts and never ends, with "ctrl-c" it sends SIGINT and
// hangs, with "fail" it ends with an error.
//
// Thread: one; submit, abort and release deliver the updates.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(bool out_of_order = false) : out_of_order_(out_of_order) {
    facts_.vocab_size = 256;
    facts_.max_model_len = 128;
    facts_.max_num_seqs = 4;
  }

  [[nodiscard]] const ModelFacts& model_facts() const override { return facts_; }
  [[nodiscard]] const TextModel& text() const override { std::abort(); }

  [[nodiscard]] Result<ValidRequest> validate(const GenerationRequest& request) const override {
    RequestLimits limits;
    limits.vocab_size = facts_.vocab_size;
    limits.max_model_len = facts_.max_model_len;
    return validate_request(request, encode(request), limits);
  }
  [[nodiscard]] Result<std::vector<ValidRequest>> validate_prompts(
      const GenerationRequest& /*request*/,
      std::vector<std::vector<TokenId>> /*prompts*/) const override {
    std::abort();
  }

  RequestId submit(ValidRequest request, UpdateCallback on_update) override {
    const RequestId id = ++num_submitted;
    Running running{std::move(request).take(), std::move(on_update)};
    const std::string prompt(running.fields.prompt_token_ids.begin(),
                             running.fields.prompt_token_ids.end());
    prompts.push_back(prompt);
    if (prompt.find("hang") != std::string::npos || prompt.find("ctrl-c") != std::string::npos) {
      give(id, running, "par", FinishReason::kNone);
      live_.emplace(id, std::move(running));
      // A second signal would end the program.
      if (prompt.find("ctrl-c") != std::string::npos && !std::exchange(interrupted_, true)) {
        std::raise(SIGINT);
      }
      return id;
    }
    if (out_of_order_ && held_ == 0) {
      live_.emplace(id, std::move(running));
      held_ = id;
      return id;
    }
    answer(id, running);
    release();
    return id;
  }

  void abort(RequestId id) override {
    const auto found = live_.find(id);
    if (found != live_.end()) {
      ++num_aborted;
      give(id, found->second, "", FinishReason::kAbort);
      live_.erase(found);
    }
  }

  void release() {
    if (held_ != 0) {
      answer(held_, live_.at(held_));
      live_.erase(held_);
      held_ = 0;
    }
  }

  [[nodiscard]] EngineStats stats() const override {
    EngineStats stats;
    stats.steps = static_cast<int64_t>(num_submitted);
    return stats;
  }

  [[nodiscard]] EngineProgress progress() const override { return {}; }
  [[nodiscard]] std::optional<std::vector<RequestStatus>> list_requests(
      std::chrono::milliseconds /*patience*/) override {
    return std::nullopt;
  }
  [[nodiscard]] const StepLog& steps() const override { return steps_; }
  [[nodiscard]] const MaskLog& mask_fills() const override { return mask_fills_; }
  Result<void> reset_prefix_cache() override { return {}; }

  Result<std::vector<std::string>> sleep(int /*level*/) override { return {}; }
  Result<std::vector<std::string>> wake_up(const std::vector<std::string>& /*tags*/) override {
    return {};
  }
  [[nodiscard]] bool is_sleeping() const override { return false; }
  Result<void> pause(PauseMode /*mode*/) override { return {}; }
  Result<void> resume() override { return {}; }
  [[nodiscard]] bool is_paused() const override { return false; }

  RequestId num_submitted = 0;
  int num_aborted = 0;
  std::vector<std::string> prompts;  // as submitted

 private:
  struct Running {
    RequestFields fields;
    UpdateCallback on_update;
    int32_t num_output_tokens = 0;
  };

  static std::vector<TokenId> encode(const GenerationRequest& request) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&request.prompt)) {
      return *ids;
    }
    std::string text;
    if (const auto* messages = std::get_if<std::vector<ChatMessage>>(&request.prompt)) {
      for (const ChatMessage& message : *messages) {
        text += message.role.substr(0, 1) + ":" + message.content + ";";
      }
    } else {
      text = std::get<std::string>(request.prompt);
    }
    return {text.begin(), text.end()};
  }

  static void give(RequestId id, Running& running, const std::string& text, FinishReason reason) {
    RequestUpdate update;
    update.id = id;
    update.text = text;
    update.token_ids.assign(text.begin(), text.end());
    running.num_output_tokens += static_cast<int32_t>(text.size());
    update.finish_reason = reason;
    if (reason != FinishReason::kNone) {
      update.num_prompt_tokens = static_cast<int32_t>(running.fields.prompt_token_ids.size());
      update.num_output_tokens = running.num_output_tokens;
      update.error = reason == FinishReason::kError ? "the toy broke" : "";
    }
    running.on_update(update);
  }

  static void answer(RequestId id, Running& running) {
    const std::string prompt(running.fields.prompt_token_ids.begin(),
                             running.fields.prompt_token_ids.end());
    if (prompt.find("fail") != std::string::npos) {
      give(id, running, "x", FinishReason::kError);
      return;
    }
    const std::optional<uint64_t> seed = running.fields.seed;
    const std::string full = "<" + prompt + (seed ? ":" + std::to_string(*seed) : "") + ">";
    const std::string text = full.substr(0, static_cast<size_t>(running.fields.max_tokens));
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      give(id, running, text.substr(i, 1), FinishReason::kNone);
    }
    give(id,
         running,
         text.substr(text.size() - 1),
         text == full ? FinishReason::kStop : FinishReason::kLength);
  }

  ModelFacts facts_;
  StepLog steps_;
  MaskLog mask_fills_;
  bool out_of_order_;
  bool interrupted_ = false;
  RequestId held_ = 0;
  std::map<RequestId, Running> live_;
};

}  // namespace warprow
