// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command_frame.h"

#include "cli/note.h"
#include "cli/output.h"
#include "engine/hub_download.h"
#include "executor/external/external_rank.h"
#include "executor/external/launch.h"

#include <unistd.h>

#include <fmt/format.h>

namespace warprow {
namespace {

// Token ids follow MODEL. Without MODEL (-m or the environment names the model) they come first. A model's name is not
// a number.
bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789,") == std::string::npos;
}

Result<std::optional<ExitCode>> answer(const std::string& text) {
  Output out(STDOUT_FILENO);
  out.write(text);
  if (Result<void> written = out.status(); !written) {
    return tl::unexpected(written.error());
  }
  return ExitCode::kOk;
}

}  // namespace

CommandFrame::CommandFrame(const char* name, const char* summary, const char* usage)
    : flags_(name, summary, usage) {}

void CommandFrame::add_output_flag() {
  flags_.add_value({.name = "output",
                    .value = "text|json",
                    .group = "Output",
                    .help = "form of the answer [text]"},
                   [this](const std::string& text) -> Result<void> {
                     if (text != "text" && text != "json") {
                       return fail(ErrorCode::kInvalidArgument,
                                   fmt::format("--output: '{}' is none of text|json", text));
                     }
                     as_json_ = text == "json";
                     return {};
                   });
}

Result<std::optional<ExitCode>> CommandFrame::begin(const Arguments& arguments,
                                                    const Traits& traits) {
  if (traits.has_engine) {
    engine_.emplace(
        flags_,
        traits.has_request_seed ? EngineFlags::Seed::kOfTheRequest : EngineFlags::Seed::kEngine);
  }
  flags_.add_positionals(positionals_);
  if (const std::optional<std::string> scope = help_scope(arguments)) {
    const Result<std::string> text = flags_.help(*scope);
    return text ? answer(*text) : tl::unexpected(text.error());
  }
  if (Result<void> parsed = flags_.parse(arguments); !parsed) {
    return tl::unexpected(parsed.error());
  }
  if (!engine_) {
    return std::nullopt;
  }
  const bool takes_others = traits.takes_more_arguments || !traits.takes_model;
  if (traits.takes_model &&
      (!takes_others || (!positionals_.empty() && !is_number(positionals_.front())))) {
    engine_->take_model(positionals_);
  }
  if (!takes_others && !positionals_.empty()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("unexpected argument '{}'; a prompt is given with -p", positionals_.front()));
  }
  Result<LoadedConfig> loaded = engine_->load();
  if (!loaded) {
    return tl::unexpected(loaded.error());
  }
  loaded_ = *loaded;
  loaded_.config.offline = traits.is_offline;
  const Result<std::optional<std::string>> printed = engine_->printed(loaded_, as_json_);
  if (!printed) {
    return tl::unexpected(printed.error());
  }
  if (*printed) {
    return answer(**printed);
  }
  if (traits.needs_model && !traits.needs_model()) {
    return std::nullopt;
  }
  if (loaded_.config.model.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "no model: name one first or with -m, for instance smollm2");
  }
  const WeightFiles weights =
      loaded_.config.load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired;
  if (Result<void> there = ensure_model(loaded_.config.model, weights, note_text); !there) {
    return tl::unexpected(there.error());
  }
  if (traits.runs_ranks && is_external(loaded_.config)) {
    const Result<Launch> launch = read_launch();
    if (!launch) {
      return tl::unexpected(launch.error());
    }
    if (launch->rank != 0) {
      run_external_rank(loaded_.config, *launch);
      return ExitCode::kOk;
    }
  }
  return std::nullopt;
}

}  // namespace warprow
