// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/trace_of_prompts.h"

#include "engine/encode_prompt.h"
#include "files/model_files.h"
#include "text/text_model.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int64_t kMaxKnownTokens = 100'000'000;  // of all prompts of a file

TraceRequest request_of(int64_t input_len, int64_t output_len) {
  const auto clamp = [](int64_t len) {
    return static_cast<int32_t>(std::min<int64_t>(len, kMaxTraceLen));
  };
  TraceRequest request;
  request.input_tokens = clamp(input_len);
  request.output_tokens = clamp(output_len);
  return request;
}

Result<ArrivalTrace> random_trace(const ServeDataset& dataset) {
  const Result<std::vector<PromptLens>> all = random_prompt_lens(dataset);
  if (!all) {
    return tl::unexpected(all.error());
  }
  ArrivalTrace trace;
  const bool has_prefix = dataset.prefix_len > 0;
  if (has_prefix) {
    trace.keys.push_back(0);
  }
  for (const PromptLens& lens : *all) {
    TraceRequest& request =
        trace.requests.emplace_back(request_of(lens.input_len, lens.output_len));
    request.prefix_unit = has_prefix ? static_cast<int32_t>(dataset.prefix_len) : 0;
    request.num_keys = has_prefix ? 1 : 0;
  }
  return trace;
}

Result<GenerationRequest> request_of_json(const nlohmann::json& prompt) {
  const auto refuse = [](const char* what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("--dataset-path: {}", what));
  };
  GenerationRequest request;
  if (prompt.is_string()) {
    request.prompt = prompt.get<std::string>();
    return request;
  }
  if (!prompt.empty() && prompt.front().is_object()) {
    std::vector<ChatMessage> messages;
    for (const nlohmann::json& message : prompt) {
      const nlohmann::json role = message.value("role", nlohmann::json());
      const nlohmann::json content = message.value("content", nlohmann::json());
      if (!role.is_string() || !content.is_string()) {
        return refuse("a message must have a role and a content, both texts");
      }
      messages.push_back({role.get<std::string>(), content.get<std::string>()});
    }
    request.prompt = std::move(messages);
    return request;
  }
  std::vector<TokenId> ids;
  for (const nlohmann::json& id : prompt) {
    if (!id.is_number_integer()) {
      return refuse("a prompt's list must be of token ids");
    }
    ids.push_back(id.get<TokenId>());
  }
  request.prompt = std::move(ids);
  return request;
}

Result<ArrivalTrace> file_trace(const ServeDataset& dataset, const std::string& model) {
  const Result<std::vector<ServePrompt>> prompts = make_prompts(dataset);
  if (!prompts) {
    return tl::unexpected(prompts.error());
  }
  const auto text = value_or_throw(load_text_model(value_or_throw(resolve_model(model))));
  ArrivalTrace trace;
  for (const ServePrompt& prompt : *prompts) {
    const Result<std::vector<TokenId>> ids =
        request_of_json(prompt.prompt).and_then([&](const GenerationRequest& request) {
          return encode_prompt(request, *text);
        });
    if (!ids) {
      return tl::unexpected(ids.error());
    }
    TraceRequest& request = trace.requests.emplace_back(
        request_of(static_cast<int64_t>(ids->size()), prompt.output_len));
    request.first_token = static_cast<int64_t>(trace.tokens.size());
    trace.tokens.insert(trace.tokens.end(), ids->begin(), ids->end());
    if (std::cmp_greater(trace.tokens.size(), kMaxKnownTokens)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--dataset-path: the prompts have more than {} tokens in all; "
                              "--num-prompts {} takes fewer",
                              kMaxKnownTokens,
                              trace.requests.size() - 1));
    }
  }
  return trace;
}

}  // namespace

Result<ArrivalTrace> trace_of_prompts(const ServeDataset& dataset,
                                      const ServeLoad& load,
                                      const std::string& model) {
  Result<ArrivalTrace> trace =
      dataset.name == "custom" ? file_trace(dataset, model) : random_trace(dataset);
  if (trace) {
    const std::vector<double> arrivals = arrival_times(static_cast<int64_t>(trace->requests.size()),
                                                       load.request_rate,
                                                       load.burstiness,
                                                       load.seed);
    for (size_t i = 0; i < arrivals.size(); ++i) {
      trace->requests[i].arrival_s = arrivals[i];
    }
  }
  return trace;
}

}  // namespace warprow
