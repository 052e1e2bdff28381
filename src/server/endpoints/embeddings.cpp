// SPDX-License-Identifier: Apache-2.0
// /v1/embeddings, as in OpenAI's API.
#include "server/endpoints/pooling.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

WriteVectors make_embeddings_writer(const Served& /*served*/, const PoolingBody& body) {
  return [base64 = body.base64](const AnswerInfo& info, std::span<const RequestUpdate> texts) {
    std::vector<std::string> items;
    items.reserve(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      items.push_back(fmt::format(R"({{"index":{},"object":"embedding","embedding":{}}})",
                                  i,
                                  vector_json(texts[i].pooled, base64)));
    }
    return list_answer(info, "data", items, texts);
  };
}

}  // namespace

ApiAnswer answer_embeddings(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr PoolingEndpoint kEmbeddings{
      "embeddings", "embd", &parse_embeddings_body, &prepare_inputs, &make_embeddings_writer};
  return pool(served, request, wake, kEmbeddings);
}

}  // namespace warprow
