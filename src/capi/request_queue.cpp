// SPDX-License-Identifier: Apache-2.0
#include "capi/request_queue.h"

#include "server/endpoints/chat_body.h"
#include "server/endpoints/completions_body.h"
#include "server/endpoints/generate.h"
#include "server/json_value.h"

#include <optional>
#include <utility>
#include <vector>

#include "capi/pooling_request.h"

namespace warprow {
namespace {

constexpr const char* kClosed = "the queue was closed";

void abort_all(Served& served, const std::vector<RequestId>& ids) {
  for (const RequestId id : ids) {
    served.engine.abort(id);
  }
}

warprow_status fail_with(const ApiError& error) {
  constexpr int kBadRequest = 400;
  constexpr int kNotFound = 404;
  constexpr int kUnavailable = 503;
  if (std::string_view(error.type) == "not_supported_error") {
    return fail_call(WARPROW_UNSUPPORTED, error.message);
  }
  switch (error.status) {
    case kBadRequest:
      return fail_call(WARPROW_INVALID_ARGUMENT, error.message);
    case kNotFound:
      return fail_call(WARPROW_NOT_FOUND, error.message);
    case kUnavailable:
      return fail_call(WARPROW_BUSY, error.message);
    default:
      return fail_call(WARPROW_INTERNAL, error.message);
  }
}

struct ReadBody {
  GenerationBody body;
  bool is_chat = false;
  std::optional<BeamOptions> beams;
};

// beam_width and length_penalty, which the server's bodies do not have.
Result<std::optional<BeamOptions>> read_beams(const OrderedJson& root, GenerationBody& body) {
  std::optional<int64_t> width;
  std::optional<double> length_penalty;
  const OrderedJson wanted = member_of(root, "beam_width");
  if (wanted.is_null()) {
    return std::nullopt;
  }
  std::erase(body.ignored, "beam_width");
  std::erase(body.ignored, "length_penalty");
  Result<void> read = read_value("beam_width", wanted, width);
  if (const OrderedJson penalty = member_of(root, "length_penalty"); read && !penalty.is_null()) {
    read = read_value("length_penalty", penalty, length_penalty);
  }
  return read.map([&] { return std::optional(BeamOptions{*width, length_penalty.value_or(1.0)}); });
}

// The endpoints' bodies, without what only an HTTP answer has.
Result<ReadBody> read_body(const OrderedJson& root, std::string_view text, PromptEmbeds embeds) {
  if (root.contains("stream_options")) {
    return fail(ErrorCode::kUnsupported, "stream_options: outputs have no usage");
  }
  const bool is_chat = root.contains("messages");
  if (is_chat && embeds != nullptr) {
    return fail(ErrorCode::kUnsupported, "prompt_embeds: a chat has no place for them");
  }
  std::vector<PromptEmbeds> given;
  if (embeds != nullptr) {
    given.push_back(std::move(embeds));
  }
  Result<GenerationBody> body =
      is_chat ? read_chat_body(root, text) : read_completions_body(root, text, std::move(given));
  if (!body) {
    return tl::unexpected(body.error());
  }
  if (body->echo) {
    return fail(ErrorCode::kUnsupported, "echo: outputs have the prompt's token ids anyway");
  }
  if (!is_chat && body->prompts.size() != 1) {
    return fail(ErrorCode::kInvalidArgument,
                "prompt: a request has one; submit the others as requests of their own");
  }
  const auto max_tokens = root.find("max_tokens");
  if (!is_chat && max_tokens != root.end() && max_tokens->is_null()) {
    body->sampling.max_tokens.reset();
  }
  Result<std::optional<BeamOptions>> beams = read_beams(root, *body);
  if (beams && *beams && !body->embeds.empty()) {
    return fail(ErrorCode::kUnsupported, "prompt_embeds: a beam search takes none");
  }
  return beams.map([&](const std::optional<BeamOptions>& read) {
    return ReadBody{*std::move(body), is_chat, read};
  });
}

EncodedPrompts encode(Served& served, ReadBody& read) {
  GenerationBody& body = read.body;
  if (const auto known = served.names.check(body.model, body.ignored); !known) {
    return tl::unexpected(known.error());
  }
  (void)take_adapter(served, body);
  return fitting_prompts(served, read.is_chat ? &prepare_chat : &prepare_completions, body);
}

}  // namespace

warprow_status RequestQueue::submit(std::string_view body, PromptEmbeds embeds, uint64_t& request) {
  return engine_->call([&](Served& served) {
    if (box_->is_closed()) {
      return fail_call(WARPROW_CLOSED, kClosed);
    }
    const Result<OrderedJson> root = parse_json_object(body);
    if (!root) {
      return fail_call(root.error());
    }
    if (is_pooling_body(*root)) {
      if (embeds != nullptr) {
        return fail_call(WARPROW_UNSUPPORTED, "prompt_embeds: a pooling request takes none");
      }
      tl::expected<ValidRequest, ApiError> valid = read_pooling_request(served, *root, body);
      return valid ? submit_choices(served, {*std::move(valid)}, false, request)
                   : fail_with(valid.error());
    }
    Result<ReadBody> read = read_body(*root, body, std::move(embeds));
    if (!read) {
      return fail_call(read.error());
    }
    EncodedPrompts prompts = encode(served, *read);
    if (!prompts) {
      return fail_with(prompts.error());
    }
    if (read->beams) {
      read->body.prompt = std::move(prompts->front());
      return submit_beams(served, read->body, *read->beams, request);
    }
    const auto valid =
        served.engine.validate_prompts(read->body, *std::move(prompts)).map_error(api_error);
    if (!valid) {
      return fail_with(valid.error());
    }
    return submit_choices(served, split_choices(valid->front()), read->body.stream, request);
  });
}

// Of one prompt.
warprow_status RequestQueue::submit_choices(Served& served,
                                            std::vector<ValidRequest> choices,
                                            bool each_update,
                                            uint64_t& request) {
  auto prompt = std::make_shared<const std::vector<TokenId>>(choices.front().prompt_token_ids());
  const uint64_t number = box_->open(std::move(prompt), choices.size(), each_update);
  std::vector<RequestId> ids;
  ids.reserve(choices.size());
  for (size_t i = 0; i < choices.size(); ++i) {
    ids.push_back(served.engine.submit(
        std::move(choices[i]),
        [box = box_, number, i](const RequestUpdate& update) { box->push(number, i, update); }));
  }
  if (!box_->name_choices(number, ids)) {
    abort_all(served, ids);
    return fail_call(WARPROW_CLOSED, kClosed);
  }
  request = number;
  return WARPROW_OK;
}

warprow_status RequestQueue::submit_beams(Served& served,
                                          const GenerationRequest& request,
                                          const BeamOptions& options,
                                          uint64_t& number) {
  const Result<std::shared_ptr<BeamSearch>> made =
      BeamSearch::make(served.engine, request, options);
  if (!made) {
    return fail_call(made.error());
  }
  BeamSearch& search = **made;
  auto prompt = std::make_shared<const std::vector<TokenId>>(search.prompt_token_ids());
  number = box_->open(std::move(prompt), static_cast<size_t>(options.width), false);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(searches_, [](const auto& entry) { return entry.second.expired(); });
    searches_.emplace(number, *made);
  }
  search.start([box = box_, number](size_t choice, const RequestUpdate& update) {
    box->push(number, choice, update);
  });
  if (box_->is_closed()) {
    search.abort();
    return fail_call(WARPROW_CLOSED, kClosed);
  }
  return WARPROW_OK;
}

// Of one request, or of all.
void RequestQueue::abort_searches(std::optional<uint64_t> request) {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, search] : searches_) {
    const std::shared_ptr<BeamSearch> live = search.lock();
    if (live != nullptr && number == request.value_or(number)) {
      live->abort();
    }
  }
}

warprow_status RequestQueue::cancel(uint64_t request) {
  return engine_->call([&](Served& served) {
    abort_searches(request);
    abort_all(served, box_->running(request));
    return warprow_status{WARPROW_OK};
  });
}

warprow_status RequestQueue::wait(int64_t timeout_ms, warprow_output*& output) {
  if (engine_->is_elsewhere()) {
    return engine_->refuse_elsewhere();
  }
  auto [status, data] = box_->wait(timeout_ms);
  if (status == WARPROW_CLOSED) {
    return fail_call(status, kClosed);
  }
  if (data != nullptr) {
    output = data.release()->view();
  }
  return status;
}

void RequestQueue::close() {
  if (engine_->is_elsewhere()) {
    return;
  }
  box_->close();
  (void)engine_->call([&](Served& served) {
    abort_searches(std::nullopt);
    abort_all(served, box_->running());
    return warprow_status{WARPROW_OK};
  });
}

warprow_status render_body(Served& served, std::string_view body, std::string& text) {
  const Result<GenerationBody> chat = parse_chat_body(body);
  if (!chat) {
    return fail_call(chat.error());
  }
  Result<std::string> rendered = render_chat_of(served, chat->chat.request);
  if (!rendered) {
    return fail_call(rendered.error());
  }
  text = *std::move(rendered);
  return WARPROW_OK;
}

}  // namespace warprow
