// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/pooling.h"
#include "server/endpoints/generation_body.h"
#include "server/json_value.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// Limit of texts in one request, as in OpenAI's API.
inline constexpr size_t kMaxPooledInputs = 2048;

// The body of an endpoint of pooling models: the engine's request, without its prompt, and the texts before they are
// encoded.
struct PoolingBody {
  PoolingRequest request;
  std::vector<TextOrIds> inputs;  // one or more; of scores none
  // Scores: the texts that are compared. One query goes with all documents.
  std::vector<std::string> queries;
  std::vector<std::string> documents;
  std::string instruction;       // of a reranker that is asked in a chat; empty: its own
  std::optional<int64_t> top_n;  // rerank: how many results
  bool return_documents = true;  // rerank
  bool base64 = false;           // vectors as base64 of little-endian float32
  std::optional<bool> add_special_tokens;
  std::optional<int64_t> truncate_prompt_tokens;  // a text's limit in tokens; -1: what fits
  bool truncates_left = false;                    // keep the last tokens, not the first
  std::string model;                              // empty: not named
  std::string request_id;                         // empty: not named
  std::vector<std::string> ignored;               // unknown fields; nothing else is ignored
};

using ReadPoolingField = Result<void> (*)(const char* field,
                                          const OrderedJson& value,
                                          PoolingBody& body);
struct PoolingField {
  const char* name;
  ReadPoolingField read;
};

// Each reads the body of an endpoint. null counts as absent. kInvalidArgument names the field, the value and what the
// value must be; kUnsupported names a field that would change the answer and is not implemented.
Result<PoolingBody> parse_embeddings_body(std::string_view text);
Result<PoolingBody> parse_pooling_body(std::string_view text);
Result<PoolingBody> parse_classify_body(std::string_view text);
Result<PoolingBody> parse_score_body(std::string_view text);
Result<PoolingBody> parse_rerank_body(std::string_view text);

}  // namespace warprow
