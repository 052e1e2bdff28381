// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"
#include "cli/command_frame.h"
#include "engine/engine.h"
#include "server/api.h"
#include "server/http/http_server.h"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

struct ServeOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  ApiOptions api;
};

Result<void> read_port(const std::string& text, uint16_t& port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--port: '{}' is no port, must be 0 to 65535", text));
  }
  return {};
}

void add_server_flags(FlagSet& flags, ServeOptions& options) {
  const auto add = [&](const char* name, const char* value, const char* help, auto read) {
    flags.add_value({.name = name, .value = value, .group = "Server", .help = help, .common = true},
                    [read](const std::string& text) -> Result<void> { return read(text); });
  };
  add("host",
      "ADDRESS",
      "address to listen on; 0.0.0.0 for every network [127.0.0.1]",
      [&options](const std::string& text) -> Result<void> {
        options.host = text;
        return {};
      });
  add("port",
      "N",
      "port to listen on; 0: any free one [8000]",
      [&options](const std::string& text) { return read_port(text, options.port); });
  add("api-key",
      "KEY",
      "what clients must send as Authorization: Bearer KEY to paths under /v1",
      [&options](const std::string& text) -> Result<void> {
        options.api.api_key = text;
        return {};
      });
  add("served-model-name",
      "NAME",
      "the model's name for clients; may be given several times, answers bear the first [MODEL]",
      [&options](const std::string& text) -> Result<void> {
        options.api.model_names.push_back(text);
        return {};
      });
}

}  // namespace

Result<ExitCode> run_serve(const Arguments& arguments) {
  const Clock::time_point start = Clock::now();
  CommandFrame frame("serve", "answers OpenAI's HTTP API", "MODEL [FLAGS]");
  ServeOptions options;
  add_server_flags(frame.flags(), options);
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  options.api.version = WARPROW_VERSION;
  if (options.api.model_names.empty()) {
    options.api.model_names.push_back(frame.config().model);
  }
  const Result<std::unique_ptr<HttpServer>> server = HttpServer::bind(options.host, options.port);
  if (!server) {
    return tl::unexpected(server.error());
  }
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  Api api(*engine, options.api);
  const auto say_ready = [&](const std::string& url) {
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    fmt::print(stderr,
               "ready in {:.0f} ms: {} serves {}\n",
               took.count(),
               url,
               options.api.model_names.front());
  };
  return (*server)->run(api, say_ready).map([] { return ExitCode::kOk; });
}

}  // namespace warprow
