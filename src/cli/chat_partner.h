// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/output.h"
#include "cli/update_queue.h"
#include "client/http_client.h"
#include "engine/engine.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// An answer in a chat, perhaps stopped half way.
struct ChatReply {
  std::string text{};
  int64_t num_tokens = 0;
  bool is_cut = false;      // at the longest length
  std::string error{};      // empty: an answer
  bool is_refused = false;  // the error is the conversation's: too long, for instance
};

// Who answers in a chat: an engine of this process or a server.
class ChatPartner {
 public:
  virtual ~ChatPartner() = default;
  // Writes the answer to `out` as it comes, until its end, a signal noted by the UpdateQueue, or a
  // reader that went away.
  virtual ChatReply answer(const std::vector<ChatMessage>& messages, Output& out) = 0;
  // Counters since the start, as one line, or empty.
  [[nodiscard]] virtual std::string counters() const = 0;
};

class EngineChat final : public ChatPartner {
 public:
  EngineChat(Engine& engine, UpdateQueue& updates, SamplingOptions sampling)
      : engine_(engine), updates_(updates), sampling_(std::move(sampling)) {}
  ChatReply answer(const std::vector<ChatMessage>& messages, Output& out) override;
  [[nodiscard]] std::string counters() const override;

 private:
  Engine& engine_;
  UpdateQueue& updates_;
  SamplingOptions sampling_;
};

// A model's reasoning, where a server tells it apart, goes to stderr.
class ServerChat final : public ChatPartner {
 public:
  // updates: only its signals count. Of the sampling what was set is sent; n and logprobs are not.
  ServerChat(HttpClient& client,
             const UpdateQueue& updates,
             std::string model,
             const SamplingOptions& sampling);
  ChatReply answer(const std::vector<ChatMessage>& messages, Output& out) override;
  [[nodiscard]] std::string counters() const override { return {}; }

 private:
  HttpClient& client_;
  const UpdateQueue& updates_;
  nlohmann::json body_;  // but for the messages
};

}  // namespace warprow
