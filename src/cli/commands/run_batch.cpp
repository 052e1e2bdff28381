// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/api_batch.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/commands/request_file.h"
#include "cli/commands/result_file.h"
#include "cli/commands/single_run.h"
#include "cli/flags/parser_flags.h"
#include "cli/note.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/run_summary.h"
#include "cli/update_queue.h"
#include "engine/engine.h"
#include "server/api.h"
#include "server/metrics/server_watch.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace warprow {
namespace {

constexpr size_t kLeastCallsAhead = 64;
constexpr size_t kCallsAheadPerRow = 2;

struct BatchFlags {
  std::optional<std::string> input;
  std::optional<std::string> output;
  ApiOptions api;
  ParserFlags parsers;
};

void add_batch_flags(FlagSet& flags, BatchFlags& batch) {
  flags.add_text({.name = "input-file",
                  .value = "FILE",
                  .group = "Batch",
                  .help = "requests, a line of JSON each; - is standard input",
                  .short_name = "i"},
                 batch.input);
  flags.add_text(
      {.name = "output-file",
       .value = "FILE",
       .group = "Batch",
       .help = "results; if it has some, the run goes on after them; - is standard output",
       .short_name = "o"},
      batch.output);
  flags.add_value({.name = "served-model-name",
                   .value = "NAME",
                   .group = "Batch",
                   .help = "the model's name in the requests; may be given several times [MODEL]"},
                  [&batch](const std::string& text) -> Result<void> {
                    batch.api.model_names.push_back(text);
                    return {};
                  });
  add_parser_flags(flags, "Batch", batch.parsers);
}

bool is_one_file(const std::string& input, const std::string& output) {
  const std::filesystem::path from = input == "-" ? "/dev/stdin" : input;
  const std::filesystem::path to = output == "-" ? "/dev/stdout" : output;
  std::error_code ignored;
  return std::filesystem::is_regular_file(from, ignored) &&
         std::filesystem::equivalent(from, to, ignored);
}

// Answers the lines with an engine in this process.
Result<ExitCode> answer_lines(const CommandFrame& frame,
                              const BatchFlags& batch,
                              std::istream& lines,
                              int64_t total) {
  const bool to_stdout = *batch.output == "-";
  std::optional<ResultFile> file;
  if (!to_stdout) {
    Result<ResultFile> opened = ResultFile::open(*batch.output, kBatchResultBegin, batch_custom_id);
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    file.emplace(*std::move(opened));
  }
  ServerWatch watch;  // declared before the engine, whose last callbacks write here
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  UpdateQueue signals;  // used only for signals
  signals.watch_signals();
  ApiOptions options = batch.api;
  set_parsers(batch.parsers, engine->text(), options);
  Api api(*engine, watch, std::move(options));
  Output out(file ? file->fd() : STDOUT_FILENO);
  const auto rows = static_cast<size_t>(std::max(0, engine->model_facts().max_num_seqs));
  ApiBatch run(api, out, std::max(kLeastCallsAhead, kCallsAheadPerRow * rows));
  if (file) {
    const Result<void> skipped =
        run.skip(lines, file->keys()).and_then([&] { return file->drop_cut_line(); });
    if (!skipped) {
      return tl::unexpected(skipped.error());
    }
  }
  const auto start = std::chrono::steady_clock::now();
  ApiBatch::Progress done;
  {
    ProgressBar bar(total, !to_stdout && isatty(STDERR_FILENO) == 1);
    done = run.run(lines, [&](const ApiBatch::Progress& progress) {
      bar.update(progress.num_lines, engine->stats().output_tokens);
      return signals.signal() == 0;
    });
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  note("{} results, {} of this run failed; {}\n",
       done.num_lines,
       done.num_failed,
       speed_text(engine->stats().output_tokens, took.count()));
  if (Result<void> written = out.status(); !written) {
    return tl::unexpected(written.error());
  }
  if (signals.signal() != 0) {
    note("warprow: interrupted; the same command goes on from here\n");
    return exit_code_of_signal(signals);
  }
  return done.num_failed == 0 ? ExitCode::kOk : ExitCode::kRequestFailed;
}

}  // namespace

Result<ExitCode> run_run_batch(const Arguments& arguments) {
  CommandFrame frame("run-batch", "run a file of requests", "MODEL -i FILE -o FILE [FLAGS]");
  BatchFlags batch;
  add_batch_flags(frame.flags(), batch);
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {.is_offline = true});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (!batch.input || !batch.output) {
    return fail(ErrorCode::kInvalidArgument, "run-batch needs -i FILE and -o FILE");
  }
  if (is_one_file(*batch.input, *batch.output)) {
    return fail(ErrorCode::kInvalidArgument, "-i and -o name the same file");
  }
  batch.api.version = WARPROW_VERSION;
  batch.api.max_queued = std::numeric_limits<int32_t>::max();
  if (batch.api.model_names.empty()) {
    batch.api.model_names.push_back(frame.config().model);
  }
  if (*batch.input == "-") {
    return answer_lines(frame, batch, std::cin, 0);
  }
  Result<std::ifstream> lines = open_requests("-i", *batch.input);
  if (!lines) {
    return tl::unexpected(lines.error());
  }
  return answer_lines(frame, batch, *lines, count_requests(*batch.input));
}

}  // namespace warprow
