// SPDX-License-Identifier: Apache-2.0
#include "capi/pooling_request.h"

#include "server/endpoints/pooling.h"

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

bool is_pair(const OrderedJson& root) {
  return root.contains("text_1") || root.contains("queries");
}

ApiError unsupported(const char* message) {
  return {.type = "not_supported_error", .message = message};
}

// What an output cannot hold.
std::optional<ApiError> unmet(const Served& served, const PoolingBody& body, bool pair) {
  const char* field = pair ? "text_2" : "input";
  const size_t count = pair ? body.documents.size() : body.inputs.size();
  if (count != 1) {
    return ApiError{
        .message = fmt::format("{}: {} texts; submit each as a request of its own", field, count),
        .param = field};
  }
  if (body.base64) {
    return unsupported("encoding_format: outputs have the values themselves");
  }
  if (pair && served.engine.model_facts().pooling.task == PoolingTask::kEmbed) {
    return unsupported("text_1: the model makes embeddings; compare those of two requests");
  }
  return std::nullopt;
}

}  // namespace

bool is_pooling_body(const OrderedJson& root) { return root.contains("input") || is_pair(root); }

tl::expected<ValidRequest, ApiError> read_pooling_request(Served& served,
                                                          const OrderedJson& root,
                                                          std::string_view text) {
  const bool pair = is_pair(root);
  const Result<PoolingBody> body = pair ? parse_score_body(text) : parse_pooling_body(text);
  if (!body) {
    return tl::unexpected(api_error(body.error()));
  }
  if (const auto known = served.names.check(body->model, body->ignored); !known) {
    return tl::unexpected(known.error());
  }
  if (std::optional<ApiError> error = unmet(served, *body, pair)) {
    return tl::unexpected(*std::move(error));
  }
  return pooled_requests(served, *body, pair ? &prepare_scores : &prepare_inputs)
      .map([](std::vector<ValidRequest> requests) { return std::move(requests.front()); });
}

}  // namespace warprow
