// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/endpoints/endpoints.h"
#include "server/json_value.h"
#include "server/response/api_error.h"

#include <string_view>

#include <tl/expected.hpp>

namespace warprow {

// Whether a body is for a pooling model: it has a member that no other has.
bool is_pooling_body(const OrderedJson& root);

// The request of the body of /pooling with one input, or of /score with one pair of texts, for a reranker. root: the
// same as text.
tl::expected<ValidRequest, ApiError> read_pooling_request(Served& served,
                                                          const OrderedJson& root,
                                                          std::string_view text);

}  // namespace warprow
