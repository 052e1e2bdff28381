// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/flags/serve_options.h"
#include "cli/note.h"
#include "config/print_config.h"
#include "engine/engine.h"
#include "executor/executor.h"
#include "server/api.h"
#include "server/http/http_server.h"
#include "server/metrics/server_watch.h"

#include <chrono>
#include <malloc.h>
#include <memory>
#include <string>
#include <utility>

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
  if (options.api.dev_endpoints && options.api.api_keys.empty() && options.api.key_files.empty() &&
      !(*server)->is_local()) {
    return fail(
        ErrorCode::kInvalidArgument,
        "--server-dev-mode needs --api-key, or a server that this machine alone can reach (--host "
        "127.0.0.1 or --uds)");
  }
  ServerWatch watch;  // declared before the engine, whose last callbacks write here
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
