// SPDX-License-Identifier: Apache-2.0
// Endpoints that load and unload LoRA adapters, with --allow-lora-updates. Paths, fields and the texts of success are vLLM's.
#include "server/endpoints/endpoints.h"
#include "server/json_value.h"
#include "server/response/api_error.h"

#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

struct AdapterBody {
  std::string name;
  std::string path;  // to load
};

Result<AdapterBody> parse_body(const std::string& text, bool loads) {
  const Result<nlohmann::ordered_json> root = parse_json_object(text);
  if (!root) {
    return tl::unexpected(root.error());
  }
  AdapterBody body;
  for (const auto& [key, value] : root->items()) {
    Result<void> read;
    if (key == "lora_name") {
      read = read_value("lora_name", value, body.name);
    } else if (key == "lora_path" && loads) {
      read = read_value("lora_path", value, body.path);
    } else if (key != "lora_int_id" && !value.is_null()) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}: no such field", key));
    }
    if (!read) {
      return tl::unexpected(read.error());
    }
  }
  if (body.name.empty() || (loads && body.path.empty())) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: must be given", body.name.empty() ? "lora_name" : "lora_path"));
  }
  return body;
}

HttpReply adapter_reply(const Result<void>& done, const std::string& success) {
  if (done) {
    return {.body = success, .content_type = "text/plain; charset=utf-8"};
  }
  ApiError error = api_error(done.error());
  if (done.error().code == ErrorCode::kCorrupt) {  // the client named these files
    error.status = 400;
    error.type = "invalid_request_error";
  }
  return error_reply(error);
}

}  // namespace

ApiAnswer answer_load_adapter(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const Result<AdapterBody> body = parse_body(request.body, true);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  if (served.names.is_base(body->name)) {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("lora_name: '{}' is the model's name", body->name),
                        "lora_name"});
  }
  return adapter_reply(served.engine.load_adapter(body->name, body->path),
                       fmt::format("Success: LoRA adapter '{}' added successfully.", body->name));
}

ApiAnswer answer_unload_adapter(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const Result<AdapterBody> body = parse_body(request.body, false);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  return adapter_reply(served.engine.unload_adapter(body->name),
                       fmt::format("Success: LoRA adapter '{}' removed successfully.", body->name));
}

}  // namespace warprow
