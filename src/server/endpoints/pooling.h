// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate.h"
#include "server/endpoints/pooling_body.h"
#include "server/response/answer_writer.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace warprow {

// Writes the whole answer of an endpoint of pooling models, from the updates of its texts.
using WriteVectors =
    std::function<std::string(const AnswerInfo& info, std::span<const RequestUpdate> texts)>;

// A text as the engine takes it, or two that are one.
struct PooledPrompt {
  std::vector<TokenId> ids;
  int32_t second_segment = 0;  // PoolingRequest::second_segment
};
using PooledPrompts = tl::expected<std::vector<PooledPrompt>, ApiError>;
using PreparePooled = PooledPrompts (*)(const Served& served, const PoolingBody& body);

// How an endpoint of pooling models differs from the others.
struct PoolingEndpoint {
  const char* name;       // in the journal and in traces
  const char* id_prefix;  // of its answers
  Result<PoolingBody> (*parse)(std::string_view text);
  PreparePooled prepare;
  // Copies what it needs of the body.
  WriteVectors (*make_writer)(const Served& served, const PoolingBody& body);
};

// The body's texts as the engine takes them, or the client's error. `prepare` encodes them.
tl::expected<std::vector<ValidRequest>, ApiError> pooled_requests(const Served& served,
                                                                  const PoolingBody& body,
                                                                  PreparePooled prepare);

// From a request to a Generation, which has submitted a request for each text.
ApiAnswer pool(Served& served,
               const HttpRequest& request,
               const Wake& wake,
               const PoolingEndpoint& endpoint);

// The tokens of one text, with the special ones unless the body says otherwise. With truncate_prompt_tokens the text's
// own tokens are cut, never the special ones around them.
tl::expected<std::vector<TokenId>, ApiError> encode_pooled(const Served& served,
                                                           const PoolingBody& body,
                                                           const std::string& text,
                                                           const char* field);

// The tokens of two texts, with those that the model's rules put around and between them. With truncate_prompt_tokens the
// second text is cut.
tl::expected<PooledPrompt, ApiError> encode_segments(const Served& served,
                                                     const PoolingBody& body,
                                                     const std::string& first,
                                                     const std::string& second,
                                                     const char* field);

// The prompts of PoolingBody::inputs.
PooledPrompts prepare_inputs(const Served& served, const PoolingBody& body);

// The prompts of /score and /rerank (scores.cpp). For a reranker, one for each pair. For an embedding model, those of the
// queries, then those of the documents.
PooledPrompts prepare_scores(const Served& served, const PoolingBody& body);

// A vector as a JSON list, each value with the fewest digits that name its float32; or as base64 of little-endian
// float32 in quotes.
std::string vector_json(std::span<const float> values, bool base64);

// OpenAI's usage of texts that get no tokens.
std::string pooled_usage_json(std::span<const RequestUpdate> texts);

// {"id","object":"list","created","model", MEMBER:[items],"usage"}.
std::string list_answer(const AnswerInfo& info,
                        const char* member,
                        const std::vector<std::string>& items,
                        std::span<const RequestUpdate> texts);

}  // namespace warprow
