// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"
#include "cli/bench/draft_counters.h"
#include "cli/bench/serve_flags.h"
#include "cli/bench/serve_load.h"
#include "cli/bench/serve_report.h"
#include "cli/flags/number_flags.h"
#include "cli/flags/server_flags.h"
#include "cli/note.h"
#include "cli/output.h"
#include "cli/progress_bar.h"

#include <cmath>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

#include "net/file_limit.h"
#include <fmt/chrono.h>
#include <fmt/format.h>

namespace warprow {
namespace {

constexpr std::chrono::hours kBenchSilence{6};  // an overloaded server may be slow

struct ServeBench {
  ServeLoad load;
  ServeDataset dataset;
  ServeReportOptions report;
  std::optional<std::string> backend;
  std::optional<std::string> endpoint;
  std::optional<std::string> model;
  std::optional<std::string> result_filename;
  int64_t num_warmups = 0;
  bool save_result = false;
};

void add_load_flags(FlagSet& flags, ServeBench& bench) {
  const auto flag = [](const char* name, const char* help) {
    return Flag{.name = name, .value = "", .group = "Load", .help = help};
  };
  add_arrival_flags(flags, bench.load);
  add_count_flag(
      flags, flag("num-warmups", "requests before the measured ones"), bench.num_warmups);
  flags.add_switch({.name = "ignore-eos",
                    .value = "",
                    .group = "Load",
                    .help = "answers go on to their full length"},
                   [&bench](bool on) { bench.load.ignore_eos = on; });
  flags.add_value({.name = "extra-body",
                   .value = "JSON",
                   .group = "Load",
                   .help = "more fields for each request, for instance {\"temperature\": 0.7}",
                   .common = false},
                  [&bench](const std::string& text) -> Result<void> {
                    bench.load.extra_body =
                        nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
                    if (!bench.load.extra_body.is_object()) {
                      return fail(ErrorCode::kInvalidArgument,
                                  fmt::format("--extra-body: '{}' is no JSON object", text));
                    }
                    return {};
                  });
}

void add_target_flags(FlagSet& flags, ServeBench& bench) {
  const auto add = [&flags](const char* name, const char* value, const char* help, auto& target) {
    flags.add_text({.name = name, .value = value, .group = "Server", .help = help}, target);
  };
  add("endpoint", "PATH", "[/v1/completions], or /v1/chat/completions", bench.endpoint);
  add("model", "NAME", "the model's name on the server [the first in its list]", bench.model);
  add("backend",
      "openai|vllm|openai-chat",
      "openai-chat: --endpoint /v1/chat/completions [openai]",
      bench.backend);
}

void add_result_flags(FlagSet& flags, ServeBench& bench) {
  add_report_flags(flags, bench.report);
  flags.add_text({.name = "result-filename",
                  .value = "FILE",
                  .group = "Result",
                  .help = "where --save-result writes"},
                 bench.result_filename);
  flags.add_switch({.name = "save-result",
                    .value = "",
                    .group = "Result",
                    .help = "write the result as JSON to a file"},
                   [&bench](bool on) { bench.save_result = on; });
}

Result<void> settle(ServeBench& bench) {
  const std::string backend = bench.backend.value_or("openai");
  if (backend != "openai" && backend != "vllm" && backend != "openai-chat") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--backend: '{}' is none of openai|vllm|openai-chat", backend));
  }
  bench.load.endpoint = bench.endpoint.value_or(backend == "openai-chat" ? "/v1/chat/completions"
                                                                         : "/v1/completions");
  if (bench.load.endpoint.empty() || bench.load.endpoint.front() != '/') {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--endpoint: '{}' does not begin with /", bench.load.endpoint));
  }
  if (Result<void> checked = check_arrivals(bench.load); !checked) {
    return checked;
  }
  if (bench.dataset.num_prompts < 1) {
    return fail(ErrorCode::kInvalidArgument, "--num-prompts must be at least 1");
  }
  bench.dataset.seed = bench.load.seed;
  bench.dataset.as_text |= bench.load.endpoint.find("chat") != std::string::npos;
  return {};
}

// Runs the load and reports progress on stderr. An Error if the first request cannot be sent.
Result<ServeRecords> measure_server(HttpClient& client,
                                    const ServeBench& bench,
                                    const std::vector<ServePrompt>& prompts) {
  const auto ignore = [](int64_t, int64_t) {};
  if (bench.num_warmups > 0) {
    std::vector<ServePrompt> warmups(static_cast<size_t>(bench.num_warmups), prompts.front());
    ServeLoad load = bench.load;
    load.request_rate = std::numeric_limits<double>::infinity();
    const ServeRecords warm = run_serve_load(client, load, warmups, ignore);
    if (const std::string& error = warm.requests.front().error; !error.empty()) {
      return fail(ErrorCode::kInvalidArgument, "the first warm-up request failed: " + error);
    }
  }
  ProgressBar progress(static_cast<int64_t>(prompts.size()), isatty(STDERR_FILENO) == 1);
  return run_serve_load(client, bench.load, prompts, [&progress](int64_t done, int64_t tokens) {
    progress.update(done, tokens);
  });
}

// The server's counters of drafts; nullopt if it has none, or no page of metrics.
std::optional<DraftCounters> ask_draft_counters(HttpClient& client) {
  const Result<HttpAnswer> answer = client.ask({.path = "/metrics"});
  return answer && answer->status == 200 ? read_draft_counters(answer->body) : std::nullopt;
}

AnswerJson with_settings(const ServeBench& bench, const AnswerJson& figures) {
  const std::time_t now = std::time(nullptr);
  const double rate = bench.load.request_rate;
  AnswerJson json;
  json["date"] = fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(now));
  json["endpoint_type"] = bench.backend.value_or("openai");
  json["model_id"] = bench.load.model;
  json["num_prompts"] = bench.dataset.num_prompts;
  json["request_rate"] = std::isinf(rate) ? AnswerJson("inf") : AnswerJson(rate);
  json["burstiness"] = bench.load.burstiness;
  json["max_concurrency"] =
      bench.load.max_concurrency > 0 ? AnswerJson(bench.load.max_concurrency) : AnswerJson(nullptr);
  json.update(figures);
  return json;
}

Result<void> save(const ServeBench& bench, const AnswerJson& json) {
  if (!bench.save_result && !bench.result_filename) {
    return {};
  }
  std::string model = bench.load.model.substr(bench.load.model.rfind('/') + 1);
  const std::string path =
      bench.result_filename.value_or(fmt::format("{}-{}qps-{}-{}.json",
                                                 bench.backend.value_or("openai"),
                                                 bench.load.request_rate,
                                                 model,
                                                 json["date"].get<std::string>()));
  std::ofstream file(path);
  if (!(file << json_line(json) << std::flush)) {
    return fail(ErrorCode::kNotFound, fmt::format("--result-filename: cannot write '{}'", path));
  }
  return {};
}

Result<ExitCode> report_load(const ServeBench& bench,
                             const ServeRecords& records,
                             const AnswerJson& drafts,
                             bool as_json) {
  AnswerJson json = with_settings(bench, serve_report(records, bench.report));
  if (!drafts.is_null()) {
    json.update(drafts);
  }
  if (Result<void> saved = save(bench, json); !saved) {
    return tl::unexpected(saved.error());
  }
  Output out(STDOUT_FILENO);
  out.write(as_json ? json_line(json) : serve_report_text(json, bench.report));
  out.end_line();
  for (const ServeRecord& record : records.requests) {
    if (!record.error.empty()) {
      note("warprow: the first request that failed: {}\n", record.error);
      break;
    }
  }
  const bool all_done = json["failed"] == 0;
  return out.status().map(
      [all_done] { return all_done ? ExitCode::kOk : ExitCode::kRequestFailed; });
}

}  // namespace

Result<ExitCode> run_bench_serve(const Arguments& arguments) {
  CommandFrame frame("bench serve", "load-test a running OpenAI-compatible server", "[FLAGS]");
  ServeBench bench;
  const auto server = std::make_unique<ServerFlags>(frame.flags());
  add_target_flags(frame.flags(), bench);
  add_load_flags(frame.flags(), bench);
  add_dataset_flags(frame.flags(), bench.dataset);
  add_result_flags(frame.flags(), bench);
  frame.add_output_flag();
  const auto begun = frame.begin(arguments, {.has_engine = false});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (Result<void> none = no_more_arguments(frame.more_arguments()); !none) {
    return tl::unexpected(none.error());
  }
  if (Result<void> settled = settle(bench); !settled) {
    return tl::unexpected(settled.error());
  }
  const Result<std::vector<ServePrompt>> prompts = make_prompts(bench.dataset);
  if (!prompts) {
    return tl::unexpected(prompts.error());
  }
  raise_file_limit();
  const Result<std::unique_ptr<HttpClient>> client = server->connect(kBenchSilence);
  if (!client) {
    return tl::unexpected(client.error());
  }
  const Result<std::string> model = bench.model ? *bench.model : first_model(**client);
  if (!model) {
    return tl::unexpected(model.error());
  }
  bench.load.model = *model;
  const std::optional<DraftCounters> before = ask_draft_counters(**client);
  const Result<ServeRecords> records = measure_server(**client, bench, *prompts);
  if (!records) {
    return tl::unexpected(records.error());
  }
  const std::optional<DraftCounters> after = ask_draft_counters(**client);
  const AnswerJson drafts = before && after ? draft_report(*before, *after) : AnswerJson(nullptr);
  return report_load(bench, *records, drafts, frame.as_json());
}

}  // namespace warprow
