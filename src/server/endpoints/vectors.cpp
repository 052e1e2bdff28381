// SPDX-License-Identifier: Apache-2.0
// /classify, and /pooling: the vectors of a pooling model whatever they are, also those of each token.
#include "server/endpoints/pooling.h"
#include "server/response/answer_json.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

WriteVectors make_class_writer(const Served& served, const PoolingBody& /*body*/) {
  return [labels = served.engine.model_facts().pooling.labels](
             const AnswerInfo& info, std::span<const RequestUpdate> texts) {
    std::vector<std::string> items;
    items.reserve(texts.size());
    for (const RequestUpdate& text : texts) {
      const auto best = std::ranges::max_element(text.pooled) - text.pooled.begin();
      items.push_back(fmt::format(R"({{"index":{},"label":{},"probs":{},"num_classes":{}}})",
                                  items.size(),
                                  json_text(Json(labels[static_cast<size_t>(best)].name)),
                                  vector_json(text.pooled, false),
                                  text.pooled.size()));
    }
    return list_answer(info, "data", items, texts);
  };
}

std::string vectors_json(const RequestUpdate& text, const PoolingBody& body) {
  if (!body.request.of_tokens || body.base64) {
    return vector_json(text.pooled, body.base64);
  }
  const auto width = static_cast<size_t>(text.pooled_width);
  std::vector<std::string> rows;
  for (size_t at = 0; at < text.pooled.size(); at += width) {
    rows.push_back(vector_json(std::span(text.pooled).subspan(at, width), false));
  }
  return fmt::format("[{}]", fmt::join(rows, ","));
}

WriteVectors make_vector_writer(const Served& /*served*/, const PoolingBody& body) {
  return [body](const AnswerInfo& info, std::span<const RequestUpdate> texts) {
    std::vector<std::string> items;
    items.reserve(texts.size());
    for (const RequestUpdate& text : texts) {
      items.push_back(fmt::format(R"({{"index":{},"object":"pooling","data":{}}})",
                                  items.size(),
                                  vectors_json(text, body)));
    }
    return list_answer(info, "data", items, texts);
  };
}

}  // namespace

ApiAnswer answer_classes(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr PoolingEndpoint kClasses{
      "classify", "classify", &parse_classify_body, &prepare_inputs, &make_class_writer};
  return pool(served, request, wake, kClasses);
}

ApiAnswer answer_vectors(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr PoolingEndpoint kVectors{
      "pooling", "pool", &parse_pooling_body, &prepare_inputs, &make_vector_writer};
  return pool(served, request, wake, kVectors);
}

}  // namespace warprow
