// SPDX-License-Identifier: Apache-2.0
#include "server/response/logprobs_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

int64_t count_characters(std::string_view bytes) {
  return std::count_if(
      bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; });
}

// Bytes that are not a complete character become U+FFFD when the JSON is written.
Json chat_entry(TokenId id, float logprob, const TokenBytes& token_bytes) {
  const std::string token = token_bytes(id);
  Json bytes = Json::array();
  for (const char c : token) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  Json entry;
  entry["token"] = token;
  entry["logprob"] = shown_float(logprob);
  entry["bytes"] = std::move(bytes);
  return entry;
}

}  // namespace

double shown_float(float value) {
  return std::isfinite(value) ? std::strtod(fmt::format("{}", value).c_str(), nullptr) : -9999.0;
}

Json completion_logprobs(std::span<const LogprobEntry> entries,
                         const TokenBytes& token_bytes,
                         int64_t& text_offset,
                         std::optional<TokenId> echo_first) {
  Json offsets = Json::array();
  Json logprobs = Json::array();
  Json tokens = Json::array();
  Json tops = Json::array();
  if (echo_first) {
    const std::string token = token_bytes(*echo_first);
    offsets.push_back(text_offset);
    logprobs.push_back(nullptr);
    tokens.push_back(token);
    tops.push_back(nullptr);
    text_offset += count_characters(token);
  }
  for (const LogprobEntry& entry : entries) {
    const std::string token = token_bytes(entry.token_id);
    Json top = Json::object();
    top[token] =
        shown_float(entry.logprob);  // always includes the sampled token, as OpenAI's API does
    for (const TokenLogprob& candidate : entry.top) {
      top[token_bytes(candidate.token_id)] = shown_float(candidate.logprob);
    }
    offsets.push_back(text_offset);
    logprobs.push_back(shown_float(entry.logprob));
    tokens.push_back(token);
    tops.push_back(std::move(top));
    text_offset += count_characters(token);
  }
  Json out;
  out["text_offset"] = std::move(offsets);
  out["token_logprobs"] = std::move(logprobs);
  out["tokens"] = std::move(tokens);
  out["top_logprobs"] = std::move(tops);
  return out;
}

Json prompt_logprobs_json(std::span<const LogprobEntry> entries, const TokenBytes& token_bytes) {
  Json out = Json::array({nullptr});
  for (const LogprobEntry& entry : entries) {
    Json tokens = Json::object();
    const auto add = [&](TokenId id, float logprob, int32_t rank) {
      Json& item = tokens[std::to_string(id)];
      item["logprob"] = shown_float(logprob);
      item["rank"] = rank;
      item["decoded_token"] = token_bytes(id);
    };
    for (size_t i = 0; i < entry.top.size(); ++i) {
      add(entry.top[i].token_id, entry.top[i].logprob, static_cast<int32_t>(i) + 1);
    }
    add(entry.token_id, entry.logprob, entry.rank);
    out.push_back(std::move(tokens));
  }
  return out;
}

Json chat_logprobs(std::span<const LogprobEntry> entries, const TokenBytes& token_bytes) {
  Json content = Json::array();
  for (const LogprobEntry& entry : entries) {
    Json top = Json::array();
    for (const TokenLogprob& candidate : entry.top) {
      top.push_back(chat_entry(candidate.token_id, candidate.logprob, token_bytes));
    }
    Json item = chat_entry(entry.token_id, entry.logprob, token_bytes);
    item["top_logprobs"] = std::move(top);
    content.push_back(std::move(item));
  }
  Json out;
  out["content"] = std::move(content);
  return out;
}

}  // namespace warprow
