// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/flags/serve_options.h"
#include "cli/note.h"
#include "config/env.h"
#include "config/print_config.h"
#include "engine/adapters.h"
#include "engine/engine.h"
#include "executor/executor.h"
#include "server/api.h"
#include "server/http/http_server.h"
#include "server/http_message.h"
#include "server/metrics/server_watch.h"
#include "server/metrics/span_exporter.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <malloc.h>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Returns the memory of large request bodies to the kernel when they are freed. By default glibc raises the first limit
// to the size of the largest block freed, and every thread's heap then keeps blocks of that size. By default, too, each
// thread has a heap, which keeps every page in which a small block is in use.
void limit_heaps() {
  constexpr int kMmapBytes = 1 << 20;
  constexpr int kTrimBytes = 4 << 20;
  constexpr int kHeaps = 2;  // the main thread's, and one for all others
  mallopt(M_MMAP_THRESHOLD, kMmapBytes);
  mallopt(M_TRIM_THRESHOLD, kTrimBytes);
  mallopt(M_ARENA_MAX, kHeaps);
}

// Null without a collector. The variables are OpenTelemetry's.
std::unique_ptr<SpanExporter> begin_spans(ServeOptions& options, ServerWatch& watch) {
  if (!options.traces) {
    return nullptr;
  }
  SpanTarget target = *options.traces;
  target.model = options.api.model_names.front();
  target.service_name = environment("OTEL_SERVICE_NAME").value_or(target.service_name);
  std::string rest = environment("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
                         .value_or(environment("OTEL_EXPORTER_OTLP_HEADERS").value_or(""));
  while (!rest.empty()) {  // name=value, with commas between
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string pair = percent_decoded(rest.substr(0, end));
    if (const size_t equals = pair.find('='); equals != std::string::npos) {
      target.headers.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    }
    rest.erase(0, end + 1);
  }
  auto spans = std::make_unique<SpanExporter>(std::move(target));
  watch.journal.on_end([to = spans.get()](const ChoiceRecord& record) { to->add(record); });
  options.api.traces = true;
  return spans;
}

Result<void> check_profile_dir(const ApiOptions& options) {
  if (options.profile_dir.empty()) {
    return {};
  }
  if (!options.dev_endpoints) {
    return fail(ErrorCode::kInvalidArgument, "--profile-dir needs --server-dev-mode");
  }
  std::error_code error;
  if (!std::filesystem::is_directory(options.profile_dir, error)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--profile-dir: '{}' is no directory", options.profile_dir));
  }
  return {};
}

// Flags that let clients command the engine.
Result<void> check_commands(const ApiOptions& options, bool is_local) {
  const char* const flag = options.dev_endpoints  ? "--server-dev-mode"
                           : options.lora_updates ? "--allow-lora-updates"
                                                  : nullptr;
  if (flag == nullptr || is_local || !options.api_keys.empty() || !options.key_files.empty()) {
    return {};
  }
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{} needs --api-key, or a server that this machine alone can reach (--host "
                  "127.0.0.1 or --uds)",
                  flag));
}

Result<void> check_adapters(const ApiOptions& options, bool records, const EngineConfig& config) {
  if (records && config.enable_lora) {
    return fail(
        ErrorCode::kUnsupported,
        "--record-steps: not supported with --enable-lora, whose adapters a replay does not have");
  }
  if (options.lora_updates && !config.enable_lora) {
    return fail(ErrorCode::kInvalidArgument, "--allow-lora-updates needs --enable-lora");
  }
  const Result<std::vector<LoadedAdapter>> adapters = parse_lora_modules(config.lora_modules);
  if (!adapters) {
    return tl::unexpected(adapters.error());
  }
  for (const LoadedAdapter& adapter : *adapters) {
    if (std::ranges::count(options.model_names, adapter.name) > 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--lora-modules: '{}' is the model's name", adapter.name));
    }
  }
  return {};
}

}  // namespace

Result<ExitCode> run_serve(const Arguments& arguments) {
  limit_heaps();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  CommandFrame frame("serve", "serve a model over an OpenAI-compatible API", "MODEL [FLAGS]");
  ServeOptions options;
  add_serve_flags(frame.flags(), options);
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (const Result<void> good = check_record_flags(options.record); !good) {
    return tl::unexpected(good.error());
  }
  options.api.version = WARPROW_VERSION;
  if (frame.config().stall_timeout > 0) {
    options.api.stall_seconds = frame.config().stall_timeout;
  }
  if (options.api.model_names.empty()) {
    options.api.model_names.push_back(frame.config().model);
  }
  const Result<std::unique_ptr<HttpServer>> server = HttpServer::listen(options.http);
  if (!server) {
    return tl::unexpected(server.error());
  }
  if (const Result<void> good = check_commands(options.api, (*server)->is_local()); !good) {
    return tl::unexpected(good.error());
  }
  if (const Result<void> good =
          check_adapters(options.api, !options.record.path.empty(), frame.config());
      !good) {
    return tl::unexpected(good.error());
  }
  if (const Result<void> good = check_profile_dir(options.api); !good) {
    return tl::unexpected(good.error());
  }
  options.api.settings = settings_json(frame.loaded());
  ServerWatch watch;  // declared before the engine, whose last callbacks write here
  const std::unique_ptr<SpanExporter> spans =
      begin_spans(options, watch);  // it outlives the engine
  std::string plan;
  const std::unique_ptr<Engine> engine =
      load_engine(frame.config(), [&](std::unique_ptr<Executor> executor) {
        plan = executor->call(ReadMemoryPlan{.as_text = true}).get().front();
        return record_steps(
            std::move(executor), frame.config(), options.record, options.api.version);
      });
  set_parsers(options.parsers, engine->text(), options.api);
  note("{}settings    {}\n", plan, settings_line(frame.loaded()));
  Api api(*engine, watch, options.api);
  const auto say_ready = [&](const std::string& url) {
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    note("ready in {:.0f} ms: {} serves {}\n", took.count(), url, options.api.model_names.front());
  };
  (*server)->run(api, say_ready);
  return api.engine_failure().empty() ? ExitCode::kOk : ExitCode::kInternal;
}

}  // namespace warprow
