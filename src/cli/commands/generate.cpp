// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/batch_run.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/commands/request_file.h"
#include "cli/commands/single_run.h"
#include "cli/flags/number_flags.h"
#include "cli/flags/prompt_flags.h"
#include "cli/flags/sampling_fields.h"
#include "cli/flags/structure_flags.h"
#include "cli/update_queue.h"
#include "engine/engine.h"

#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

namespace warprow {
namespace {

// The default of the Completions API, for --prompts-file. A single prompt has no such limit and runs to its end token.
constexpr int64_t kBatchMaxTokens = 16;

Result<ExitCode> run_one(const EngineConfig& config,
                         const PromptFlags& prompt,
                         const SamplingOptions& sampling,
                         const BeamOptions& beams,
                         const RunOptions& options) {
  Result<GenerationRequest> request = prompt.read();
  if (!request) {
    return tl::unexpected(request.error());
  }
  request->sampling = sampling;
  Output out(STDOUT_FILENO);
  UpdateQueue updates;
  const std::unique_ptr<Engine> engine = load_engine(config);
  updates.watch_signals();
  return beams.width > 0 ? run_beams(*engine, updates, *request, beams, options, out)
                         : run_single(*engine, updates, *request, options, out);
}

Result<ExitCode> run_file(const EngineConfig& config,
                          const std::string& path,
                          SamplingOptions defaults,
                          const RunOptions& options) {
  std::ifstream file;
  if (path != "-") {
    Result<std::ifstream> opened = open_requests("--prompts-file", path);
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    file = *std::move(opened);
  }
  if (!defaults.max_tokens) {
    defaults.max_tokens = kBatchMaxTokens;
  }
  Output out(STDOUT_FILENO);
  UpdateQueue updates;
  const std::unique_ptr<Engine> engine = load_engine(config);
  updates.watch_signals();
  BatchRun batch(*engine, updates, options, out);
  return batch.run(path == "-" ? std::cin : file, defaults, count_requests(path));
}

// A width of 0: no beam search.
void add_beam_flags(FlagSet& flags, BeamOptions& beams) {
  beams.width = 0;
  add_count_flag(
      flags,
      {.name = "beam-width",
       .value = "N",
       .group = "Sampling",
       .help = "search for the N likeliest answers, up to 10, instead of drawing; 0: off",
       .common = false},
      beams.width);
  add_number_flag(flags,
                  {.name = "length-penalty",
                   .value = "X",
                   .group = "Sampling",
                   .help = "with --beam-width: an answer's score is its logprob / length ^ X",
                   .common = false},
                  beams.length_penalty);
}

}  // namespace

Result<ExitCode> run_generate(const Arguments& arguments) {
  CommandFrame frame(
      "generate",
      "generate text from a prompt",
      "MODEL (-p TEXT | --chat TEXT | --prompt-file FILE | --prompts-file FILE.jsonl) [FLAGS]");
  const PromptFlags prompt(frame.flags());
  std::optional<std::string> prompts_file;
  frame.flags().add_text(
      {.name = "prompts-file",
       .value = "FILE.jsonl",
       .group = "Prompt",
       .help =
           "a JSON object a line: prompt or messages, and any sampling field; - is standard input"},
      prompts_file);
  SamplingOptions sampling;
  add_sampling_flags(frame.flags(), sampling);
  BeamOptions beams;
  add_beam_flags(frame.flags(), beams);
  const StructureFlags structure(frame.flags());
  frame.add_output_flag();
  RunOptions options;
  add_stats_flag(frame.flags(), options);
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {.has_request_seed = true, .is_offline = true});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  Result<std::optional<StructuredOutput>> structured = structure.read();
  if (!structured) {
    return tl::unexpected(structured.error());
  }
  sampling.structured_output = *std::move(structured);
  if (Result<void> checked = check_without_model(sampling); !checked) {
    return tl::unexpected(refused_request(checked.error()));
  }
  options.format = frame.as_json() ? AnswerFormat::kJson : AnswerFormat::kText;
  options.summary = isatty(STDERR_FILENO) == 1;
  if (!prompts_file) {
    return run_one(frame.config(), prompt, sampling, beams, options);
  }
  if (beams.width > 0) {
    return fail(ErrorCode::kInvalidArgument, "--beam-width: not with --prompts-file");
  }
  if (prompt.count() > 0) {
    return fail(ErrorCode::kInvalidArgument,
                "--prompts-file: brings its own prompts; leave the other prompt out");
  }
  return run_file(frame.config(), *prompts_file, sampling, options);
}

}  // namespace warprow
