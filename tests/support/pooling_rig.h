// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "engine/pooling.h"
#include "executor/make_executor.h"
#include "tests/support/serializing_executor.h"
#include "text/byte_text.h"

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

inline std::unique_ptr<Engine> start_engine(const EngineConfig& config, bool serialised = false) {
  std::unique_ptr<Executor> executor = make_executor(config);
  if (serialised) {
    executor = std::make_unique<SerializingExecutor>(std::move(executor));
  }
  return make_engine(config, value_or_throw(make_byte_text()), std::move(executor));
}

inline PoolingRequest pooling_request(const std::vector<TokenId>& ids, int32_t second_segment = 0) {
  PoolingRequest request;
  request.prompt = ids;
  request.second_segment = second_segment;
  return request;
}

// Submits all requests at once. Their vectors, in their order.
inline std::vector<std::vector<float>> run_pooling(Engine& engine,
                                                   const std::vector<PoolingRequest>& requests) {
  std::vector<std::promise<std::vector<float>>> ends(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.submit(value_or_throw(engine.validate_pooling(requests[i])),
                  [&end = ends[i]](const RequestUpdate& update) {
                    if (update.finish_reason != FinishReason::kNone) {
                      end.set_value(update.pooled);
                    }
                  });
  }
  std::vector<std::vector<float>> out;
  for (auto& end : ends) {
    out.push_back(end.get_future().get());
  }
  return out;
}

inline std::vector<float> run_pooling(Engine& engine, const PoolingRequest& request) {
  return run_pooling(engine, std::vector{request}).front();
}

// The first token of a golden prompt's second segment, or 0.
inline int32_t second_segment(const nlohmann::json& prompt) {
  if (!prompt.contains("types")) {
    return 0;
  }
  const auto types = prompt["types"].get<std::vector<int32_t>>();
  return static_cast<int32_t>(std::ranges::find(types, 1) - types.begin());
}

}  // namespace warprow::test
