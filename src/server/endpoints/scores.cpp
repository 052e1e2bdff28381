// SPDX-License-Identifier: Apache-2.0
// /score and /rerank: how well documents fit a query, by a reranker, or by the angle between two embeddings.
#include "server/endpoints/pooling.h"
#include "server/response/answer_json.h"
#include "text/text_model.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

// The chat that Qwen3-Reranker was trained on; its model card has it.
constexpr const char* kJudgeBegin =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n";
constexpr const char* kJudgeEnd = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
constexpr const char* kJudgeInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

const PoolingFacts& facts(const Served& served) { return served.engine.model_facts().pooling; }

// A text alone.
tl::expected<PooledPrompt, ApiError> as_prompt(tl::expected<std::vector<TokenId>, ApiError> ids) {
  return std::move(ids).map([](std::vector<TokenId> all) { return PooledPrompt{std::move(all)}; });
}

// Qwen3-Reranker's chat of a pair.
tl::expected<std::vector<TokenId>, ApiError> encode_judged(const Served& served,
                                                           const PoolingBody& body,
                                                           const std::string& query,
                                                           const std::string& document) {
  const Tokenizer& tokenizer = served.engine.text().tokenizer;
  std::vector<TokenId> ids = tokenizer.encode(kJudgeBegin, false);
  const std::vector<TokenId> end = tokenizer.encode(kJudgeEnd, false);
  const auto num_around = static_cast<int64_t>(ids.size() + end.size());
  const std::string text =
      fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}",
                  body.instruction.empty() ? kJudgeInstruction : body.instruction,
                  query,
                  document);
  PoolingBody cut = body;
  cut.add_special_tokens = false;
  if (cut.truncate_prompt_tokens) {
    const int64_t longest = served.engine.model_facts().max_model_len;
    const int64_t most = *cut.truncate_prompt_tokens < 0 ? longest : *cut.truncate_prompt_tokens;
    if (most <= num_around) {
      return tl::unexpected(ApiError{
          .message = fmt::format("truncate_prompt_tokens: {} leaves no token of the texts; {} are "
                                 "around them",
                                 most,
                                 num_around),
          .param = "truncate_prompt_tokens"});
    }
    cut.truncate_prompt_tokens = most - num_around;
  }
  tl::expected<std::vector<TokenId>, ApiError> own = encode_pooled(served, cut, text, "documents");
  if (!own) {
    return own;
  }
  ids.insert(ids.end(), own->begin(), own->end());
  ids.insert(ids.end(), end.begin(), end.end());
  return ids;
}

tl::expected<PooledPrompt, ApiError> encode_pair(const Served& served,
                                                 const PoolingBody& body,
                                                 const std::string& query,
                                                 const std::string& document) {
  switch (facts(served).pair_form) {
    case PairForm::kSegments:
      return encode_segments(served, body, query, document, "documents");
    case PairForm::kQwen3Judge:
      return as_prompt(encode_judged(served, body, query, document));
    case PairForm::kJoined:
      break;
  }
  return as_prompt(encode_pooled(served, body, query + document, "documents"));
}

// The error of a model that has no single score, since it has several labels.
std::optional<ApiError> scores_error(const Served& served) {
  const PoolingFacts& model = facts(served);
  if (model.task != PoolingTask::kClassify || model.width == 1) {
    return std::nullopt;
  }
  return ApiError{.type = "not_supported_error",
                  .message = fmt::format("the model has {} labels; scores need a model with one. "
                                         "Ask for /classify",
                                         model.width)};
}

// A score for each document.
std::vector<float> scores_of(const PoolingBody& body, std::span<const RequestUpdate> texts) {
  const size_t num_documents = body.documents.size();
  const size_t num_queries = texts.size() - num_documents;  // 0: of a reranker
  std::vector<float> scores;
  scores.reserve(num_documents);
  for (size_t i = 0; i < num_documents; ++i) {
    const std::vector<float>& document = texts[num_queries + i].pooled;
    scores.push_back(num_queries == 0 ? document.front()
                                      : static_cast<float>(cosine(
                                            texts[num_queries == 1 ? 0 : i].pooled, document)));
  }
  return scores;
}

WriteVectors make_score_writer(const Served& /*served*/, const PoolingBody& body) {
  return [body](const AnswerInfo& info, std::span<const RequestUpdate> texts) {
    const std::vector<float> scores = scores_of(body, texts);
    std::vector<std::string> items;
    items.reserve(scores.size());
    for (const float score : scores) {
      items.push_back(
          fmt::format(R"({{"index":{},"object":"score","score":{}}})", items.size(), score));
    }
    return list_answer(info, "data", items, texts);
  };
}

// The best documents first; of equal scores the one that came first.
WriteVectors make_rerank_writer(const Served& /*served*/, const PoolingBody& body) {
  return [body](const AnswerInfo& info, std::span<const RequestUpdate> texts) {
    const std::vector<float> scores = scores_of(body, texts);
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, [&](size_t a, size_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    if (body.top_n && *body.top_n > 0 && std::cmp_less(*body.top_n, order.size())) {
      order.resize(static_cast<size_t>(*body.top_n));
    }
    std::vector<std::string> items;
    items.reserve(order.size());
    for (const size_t index : order) {
      const std::string document =
          body.return_documents
              ? fmt::format(R"("document":{},)", json_text(Json{{"text", body.documents[index]}}))
              : "";
      items.push_back(
          fmt::format(R"({{"index":{},{}"relevance_score":{}}})", index, document, scores[index]));
    }
    return list_answer(info, "results", items, texts);
  };
}

}  // namespace

PooledPrompts prepare_scores(const Served& served, const PoolingBody& body) {
  if (std::optional<ApiError> error = scores_error(served)) {
    return tl::unexpected(*std::move(error));
  }
  std::vector<PooledPrompt> out;
  const bool embeds = facts(served).task == PoolingTask::kEmbed;
  const auto add = [&](tl::expected<PooledPrompt, ApiError> prompt) {
    std::optional<ApiError> error;
    if (prompt) {
      out.push_back(*std::move(prompt));
    } else {
      error = std::move(prompt.error());
    }
    return error;
  };
  if (embeds) {
    for (const std::string& query : body.queries) {
      if (auto error = add(as_prompt(encode_pooled(served, body, query, "text_1")))) {
        return tl::unexpected(*std::move(error));
      }
    }
  }
  for (size_t i = 0; i < body.documents.size(); ++i) {
    const std::string& query = body.queries[body.queries.size() == 1 ? 0 : i];
    if (auto error =
            add(embeds ? as_prompt(encode_pooled(served, body, body.documents[i], "documents"))
                       : encode_pair(served, body, query, body.documents[i]))) {
      return tl::unexpected(*std::move(error));
    }
  }
  return out;
}

ApiAnswer answer_scores(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr PoolingEndpoint kScores{
      "score", "score", &parse_score_body, &prepare_scores, &make_score_writer};
  return pool(served, request, wake, kScores);
}

ApiAnswer answer_rerank(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr PoolingEndpoint kRerank{
      "rerank", "rerank", &parse_rerank_body, &prepare_scores, &make_rerank_writer};
  return pool(served, request, wake, kRerank);
}

}  // namespace warprow
