// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <iterator>
#include <utility>

namespace warprow {

void join_update(RequestUpdate& known, RequestUpdate later) {
  const auto carry = [&](auto part) {
    auto& all = known.*part;
    auto& more = later.*part;
    all.insert(
        all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    more = std::move(all);
  };
  carry(&RequestUpdate::text);
  carry(&RequestUpdate::token_ids);
  carry(&RequestUpdate::logprobs);
  carry(&RequestUpdate::prompt_logprobs);
  carry(&RequestUpdate::hidden_states);
  carry(&RequestUpdate::pooled);
  known = std::move(later);
}

}  // namespace warprow
