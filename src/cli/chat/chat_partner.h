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

// An answer in a chat; may be incomplete.
struct ChatReply {
  std::string text{};
  int64_t num_tokens = 0;
  bool is_cut = false;      // finish reason "length"
  std::string error{};      // empty: no error
  bool is_refused = false;  // the conversation causes the error: too long, for instance
};

// The source of answers in a chat: an engine in this process or a server.
class ChatPartner {
 public:
  virtual ~ChatPartner() = default;
  // Streams the answer to `out` until its end, a signal that the UpdateQueue has recorded, or a closed output.
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

// If the server separates the reasoning, it goes to stderr.
class ServerChat final : public ChatPartner {
 public:
  // updates: used only for signals. Sends the sampling options that are set, except n and logprobs.
  ServerChat(HttpClient& client,
             const UpdateQueue& updates,
             std::string model,
             const SamplingOptions& sampling);
  ChatReply answer(const std::vector<ChatMessage>& messages, Output& out) override;
  [[nodiscard]] std::string counters() const override { return {}; }

 private:
  HttpClient& client_;
  const UpdateQueue& updates_;
  nlohmann::json body_;  // without the messages
};

}  // namespace warprow
