// SPDX-License-Identifier: Apache-2.0
#include "capi/request_queue.h"

#include "server/endpoints/chat_body.h"
#include "server/endpoints/completions_body.h"
#include "server/endpoints/generate.h"
#include "server/json_value.h"
#include "text/chat_prompt.h"

#include <utility>
#include <vector>

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
};

// The endpoints' bodies, without what only an HTTP answer has.
Result<ReadBody> read_body(std::string_view text) {
  const Result<OrderedJson> root = parse_json_object(text);
  if (!root) {
    return tl::unexpected(root.error());
  }
  if (root->contains("stream_options")) {
    return fail(ErrorCode::kUnsupported, "stream_options: outputs have no usage");
  }
  const bool is_chat = root->contains("messages");
  Result<GenerationBody> body =
      is_chat ? read_chat_body(*root, text) : parse_completions_body(text);
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
  const auto max_tokens = root->find("max_tokens");
  if (!is_chat && max_tokens != root->end() && max_tokens->is_null()) {
    body->sampling.max_tokens.reset();
  }
  return ReadBody{*std::move(body), is_chat};
}

tl::expected<std::vector<ValidRequest>, ApiError> prepare(Served& served, ReadBody& read) {
  GenerationBody& body = read.body;
  if (const auto known = served.names.check(body.model, body.ignored); !known) {
    return tl::unexpected(known.error());
  }
  EncodedPrompts prompts =
      fitting_prompts(served, read.is_chat ? &prepare_chat : &prepare_completions, body);
  if (!prompts) {
    return tl::unexpected(std::move(prompts).error());
  }
  return served.engine.validate_prompts(body, *std::move(prompts)).map_error(api_error);
}

}  // namespace

warprow_status RequestQueue::submit(std::string_view body, uint64_t& request) {
  return engine_->call([&](Served& served) {
    if (box_->is_closed()) {
      return fail_call(WARPROW_CLOSED, kClosed);
    }
    Result<ReadBody> read = read_body(body);
    if (!read) {
      return fail_call(read.error());
    }
    const auto valid = prepare(served, *read);
    if (!valid) {
      return fail_with(valid.error());
    }
    std::vector<ValidRequest> choices = split_choices(valid->front());
    auto prompt = std::make_shared<const std::vector<TokenId>>(valid->front().prompt_token_ids());
    const uint64_t number = box_->open(std::move(prompt), choices.size(), read->body.stream);
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
    return warprow_status{WARPROW_OK};
  });
}

warprow_status RequestQueue::cancel(uint64_t request) {
  return engine_->call([&](Served& served) {
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
    abort_all(served, box_->running());
    return warprow_status{WARPROW_OK};
  });
}

warprow_status render_body(Served& served, std::string_view body, std::string& text) {
  const Result<GenerationBody> chat = parse_chat_body(body);
  if (!chat) {
    return fail_call(chat.error());
  }
  Result<std::string> rendered = render_chat(chat->chat.request, served.engine.text());
  if (!rendered) {
    return fail_call(rendered.error());
  }
  text = *std::move(rendered);
  return WARPROW_OK;
}

}  // namespace warprow
