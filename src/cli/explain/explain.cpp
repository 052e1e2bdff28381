// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/explain/explanation_text.h"
#include "cli/flags/server_flags.h"
#include "cli/output.h"

#include <chrono>
#include <memory>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr std::chrono::seconds kSilence{10};

// An id in a path. Ids have visible ASCII characters only.
std::string percent_encoded(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
    out += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

Result<nlohmann::json> ask(HttpClient& client, const std::string& id, bool with_steps) {
  const std::string path =
      fmt::format("/v1/requests/{}{}", percent_encoded(id), with_steps ? "?steps=true" : "");
  const Result<HttpAnswer> answer = client.ask({.path = path});
  if (!answer) {
    return tl::unexpected(answer.error());
  }
  if (answer->status != 200) {
    return fail(answer->status == 404 ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument,
                refusal_text(*answer));
  }
  nlohmann::json json = nlohmann::json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return fail(ErrorCode::kInvalidArgument, path + ": the answer is no JSON object");
  }
  return json;
}

}  // namespace

Result<ExitCode> run_explain(const Arguments& arguments) {
  CommandFrame frame(
      "explain", "say why a request to a running server took its time", "ID [FLAGS]");
  bool with_steps = false;
  auto server = std::make_unique<ServerFlags>(frame.flags());
  frame.flags().add_switch(
      {.name = "steps", .value = "", .group = "View", .help = "also each step that ran it"},
      [&with_steps](bool on) { with_steps = on; });
  frame.add_output_flag();
  const auto begun = frame.begin(arguments, {.has_engine = false});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (frame.more_arguments().size() != 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("explain takes one id, as in an answer's \"id\" or its X-Request-Id; "
                            "there are {}",
                            frame.more_arguments().size()));
  }
  const Result<std::unique_ptr<HttpClient>> client = server->connect(kSilence);
  if (!client) {
    return tl::unexpected(client.error());
  }
  const Result<nlohmann::json> json = ask(**client, frame.more_arguments().front(), with_steps);
  if (!json) {
    return tl::unexpected(json.error());
  }
  const Result<std::string> text = frame.as_json() ? json->dump() : explanation_text(*json);
  if (!text) {
    return tl::unexpected(text.error());
  }
  Output out(STDOUT_FILENO);
  out.write(*text);
  out.end_line();
  return out.status().map([] { return ExitCode::kOk; });
}

}  // namespace warprow
