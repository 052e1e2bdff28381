// SPDX-License-Identifier: Apache-2.0
// Endpoints that command the engine, with --server-dev-mode.
#include "server/endpoints/endpoints.h"
#include "server/json_value.h"
#include "server/response/answer_json.h"
#include "server/response/api_error.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

HttpReply call_reply(const Result<std::vector<std::string>>& result) {
  if (!result) {
    return error_reply(api_error(result.error()));
  }
  return {.content_type = ""};
}

using Json = nlohmann::ordered_json;

HttpReply status_reply(const Result<void>& done, const char* status) {
  return done ? HttpReply{.body = Json{{"status", status}}.dump()}
              : error_reply(api_error(done.error()));
}

std::optional<Engine::PauseMode> parse_pause_mode(std::string_view name) {
  if (name == "abort") {
    return Engine::PauseMode::kAbort;
  }
  if (name == "keep") {
    return Engine::PauseMode::kKeep;
  }
  return name == "wait" ? std::optional(Engine::PauseMode::kWait) : std::nullopt;
}

}  // namespace

ApiAnswer answer_sleep(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const std::string text = query_value(request.query, "level").value_or("1");
  if (text != "1" && text != "2") {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("level: '{}' is neither 1 nor 2", text),
                        "level"});
  }
  const int level = text == "1" ? 1 : 2;
  const Result<std::vector<std::string>> slept = served.engine.sleep(level);
  if (slept) {
    served.watch.metrics.set_sleep_level(level);
  }
  return call_reply(slept);
}

ApiAnswer answer_wake_up(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  return call_reply(served.engine.wake_up(query_values(request.query, "tags")));
}

ApiAnswer answer_is_sleeping(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body = Json{{"is_sleeping", served.engine.is_sleeping()}}.dump()};
}

ApiAnswer answer_reset_prefix_cache(Served& served,
                                    const HttpRequest& /*request*/,
                                    const Wake& /*wake*/) {
  if (const Result<void> done = served.engine.reset_prefix_cache(); !done) {
    ApiError error = api_error(done.error());
    error.status = error.status == 400 ? 409 : error.status;
    return error_reply(error);
  }
  return HttpReply{.content_type = ""};
}

// Names and answers are vLLM's. clear_cache forgets the cached prefixes, if no request is kept.
ApiAnswer answer_pause(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const std::string mode = query_value(request.query, "mode").value_or("abort");
  const std::string clear = query_value(request.query, "clear_cache").value_or("true");
  const std::optional<Engine::PauseMode> known = parse_pause_mode(mode);
  if (!known) {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("mode: '{}' is neither abort, keep nor wait", mode),
                        "mode"});
  }
  if (clear != "true" && clear != "false") {
    return error_reply({400,
                        "invalid_request_error",
                        fmt::format("clear_cache: '{}' is neither true nor false", clear),
                        "clear_cache"});
  }
  Result<void> done = served.engine.pause(*known);
  if (done && *known != Engine::PauseMode::kKeep && clear == "true") {
    done = served.engine.reset_prefix_cache();
  }
  return status_reply(done, "paused");
}

ApiAnswer answer_resume(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return status_reply(served.engine.resume(), "resumed");
}

ApiAnswer answer_is_paused(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  return HttpReply{.body = Json{{"is_paused", served.engine.is_paused()}}.dump()};
}

// The body has vLLM's form: {"update_info": {"weights_path": MODEL}}.
ApiAnswer answer_update_weights(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const Result<Json> root = parse_json_object(request.body);
  if (!root) {
    return error_reply(api_error(root.error()));
  }
  const Json path = member_of(member_of(*root, "update_info"), "weights_path");
  if (!path.is_string()) {
    return error_reply({400,
                        "invalid_request_error",
                        "update_info.weights_path: must name a model on the server's machine",
                        "update_info.weights_path"});
  }
  if (const Result<void> done = served.engine.update_weights(path.get<std::string>()); !done) {
    return error_reply(api_error(done.error()));
  }
  return HttpReply{.body = Json{{"message", "Weights updated"}}.dump()};
}

ApiAnswer answer_start_profile(Served& served,
                               const HttpRequest& /*request*/,
                               const Wake& /*wake*/) {
  return status_reply(served.profile.start(), "started");
}

ApiAnswer answer_stop_profile(Served& served,
                              const HttpRequest& /*request*/,
                              const Wake& /*wake*/) {
  const Result<std::string> file = served.profile.stop(served.engine, served.watch);
  if (!file) {
    return error_reply(api_error(file.error()));
  }
  return HttpReply{.body = json_text({{"status", "stopped"}, {"file", *file}})};
}

ApiAnswer answer_server_info(Served& served, const HttpRequest& /*request*/, const Wake& /*wake*/) {
  const ModelFacts& facts = served.engine.model_facts();
  Json out;
  out["version"] = served.options.version;
  out["models"] = served.options.model_names;
  out["vocab_size"] = facts.vocab_size;
  out["max_model_len"] = facts.max_model_len;
  out["max_num_seqs"] = facts.max_num_seqs;
  out["max_num_batched_tokens"] = facts.max_num_batched_tokens;
  out["settings"] = Json::parse(served.options.settings);
  return HttpReply{.body = json_text(out)};
}

}  // namespace warprow
