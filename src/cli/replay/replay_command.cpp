// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/commands/hub_download.h"
#include "cli/note.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/replay/recorded_run.h"
#include "cli/replay/replay.h"
#include "config/fields.h"
#include "executor/make_executor.h"
#include "worker/model_plan.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Settings of this machine and this run, which are never taken from a recording.
bool is_local(std::string_view field) {
  constexpr std::string_view kLocal[] = {"threads", "pin-threads", "log-level", "log-format"};
  return std::ranges::find(kLocal, field) != std::end(kLocal);
}

// The settings of the recorded run, with its sizes, under those that the user gives.
Result<EngineConfig> settings_of(const RecordedRun& run, const LoadedConfig& given) {
  EngineConfig base = run.config;
  base.max_model_len = run.facts.max_model_len;
  base.max_num_seqs = run.facts.max_num_seqs;
  base.max_num_batched_tokens = run.facts.max_num_batched_tokens;
  EngineConfig config = given.config;
  Result<void> set;
  for_each_field([&](const Field& field) {
    if (set && given.origin(field.name) == Origin::kDefault && !is_local(field.name)) {
      set = set_field(config, field, field_text(base, field), "recording");
    }
  });
  if (!set) {
    return tl::unexpected(set.error());
  }
  return config;
}

// Makes room for as many KV blocks as the recorded run had. A block may have another size here.
Result<void> size_cache(const RecordedRun& run, EngineConfig& config) {
  EngineConfig any_size = config;
  any_size.max_model_len = 0;
  any_size.kv_cache_memory_bytes = 0;
  const Result<ModelPlan> plan = plan_model(any_size, this_machine(any_size.device));
  if (!plan) {
    return tl::unexpected(plan.error());
  }
  config.kv_cache_memory_bytes = plan->memory.kv_block_bytes * run.facts.kv.num_blocks;
  return {};
}

tl::unexpected<Error> too_small(std::string_view what, int64_t here, int64_t recorded) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} {} here, {} in the recording", here, what, recorded));
}

// Whether the recorded steps can run on this executor.
Result<void> check_sizes(const ModelFacts& recorded, const ModelFacts& here) {
  if (here.vocab_size != recorded.vocab_size) {
    return too_small("tokens in the vocabulary", here.vocab_size, recorded.vocab_size);
  }
  if (here.kv.groups.size() != recorded.kv.groups.size()) {
    return too_small("groups of KV layers",
                     static_cast<int64_t>(here.kv.groups.size()),
                     static_cast<int64_t>(recorded.kv.groups.size()));
  }
  for (size_t i = 0; i < here.kv.groups.size(); ++i) {
    if (here.kv.groups[i].block_size != recorded.kv.groups[i].block_size) {
      return too_small(
          "tokens in a KV block", here.kv.groups[i].block_size, recorded.kv.groups[i].block_size);
    }
    if (here.kv.groups[i].window != recorded.kv.groups[i].window) {
      return too_small(
          "tokens in a window", here.kv.groups[i].window, recorded.kv.groups[i].window);
    }
  }
  if (here.token_pages.page_size != recorded.token_pages.page_size) {
    return too_small(
        "tokens in a page", here.token_pages.page_size, recorded.token_pages.page_size);
  }
  const auto least = [](std::string_view what, int64_t is, int64_t was) -> Result<void> {
    if (is < was) {
      return too_small(what, is, was);
    }
    return {};
  };
  return least("KV blocks", here.kv.num_blocks, recorded.kv.num_blocks)
      .and_then([&] { return least("rows", here.max_num_seqs, recorded.max_num_seqs); })
      .and_then([&] {
        return least(
            "tokens in a step", here.max_num_batched_tokens, recorded.max_num_batched_tokens);
      })
      .and_then(
          [&] { return least("tokens in a row", here.max_model_len, recorded.max_model_len); })
      .and_then([&] {
        return least("token pages", here.token_pages.num_pages, recorded.token_pages.num_pages);
      })
      .and_then([&] { return least("drafts", here.max_drafts, recorded.max_drafts); });
}

Result<std::unique_ptr<Executor>> load(const RecordedRun& run, const LoadedConfig& given) {
  Result<EngineConfig> config = settings_of(run, given);
  if (!config) {
    return tl::unexpected(config.error());
  }
  const WeightFiles weights =
      config->load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired;
  if (Result<void> there = ensure_model(config->model, weights); !there) {
    return tl::unexpected(there.error());
  }
  if (given.origin("kv-cache-memory-bytes") == Origin::kDefault) {
    if (Result<void> sized = size_cache(run, *config); !sized) {
      return tl::unexpected(sized.error());
    }
  }
  const Result<uint64_t> hash = model_hash(*config);
  if (!hash) {
    return tl::unexpected(hash.error());
  }
  if (*hash != run.model_hash) {
    note("the weights of {} are not those of the recording\n", config->model);
  }
  std::unique_ptr<Executor> executor = make_executor(*config);
  executor->enter_thread();
  if (Result<void> fits = check_sizes(run.facts, executor->model_facts()); !fits) {
    return tl::unexpected(fits.error());
  }
  return executor;
}

std::string text_of(const ReplayFinding& finding) {
  return finding.row ? fmt::format("step {}, row {}: {}", finding.step, *finding.row, finding.what)
                     : fmt::format("step {}: {}", finding.step, finding.what);
}

std::string text_of(const ReplayReport& report, const RecordedRun& run) {
  std::string text = fmt::format("recording   {} steps, {} to {}, of {} by warprow {}",
                                 report.num_steps,
                                 report.first_step,
                                 report.last_step,
                                 run.config.model,
                                 run.version);
  if (report.num_gaps > 0 || report.num_damaged > 0) {
    text += fmt::format("; {} gaps, {} damaged records", report.num_gaps, report.num_damaged);
  }
  text += fmt::format("\nschedule    {}\n",
                      report.wrong_schedule ? text_of(*report.wrong_schedule) : "consistent");
  if (!report.did_run) {
    return text + "tokens      not checked: the recording has no ids";
  }
  text += fmt::format("replay      {} steps, {} requests, {} outputs of rows compared",
                      report.num_steps_run,
                      report.num_requests,
                      report.num_outputs);
  if (report.num_left_out > 0) {
    text += fmt::format("; {} requests left out, which began before the recording",
                        report.num_left_out);
  }
  if (report.num_recomputed > 0) {
    text += fmt::format("; {} tokens of older prefixes computed again", report.num_recomputed);
  }
  text += "\ntokens      ";
  return text + (report.first_difference ? fmt::format("{} of {} requests differ, first in {}",
                                                       report.num_different,
                                                       report.num_requests,
                                                       text_of(*report.first_difference))
                                         : std::string("no difference"));
}

AnswerJson json_of(const std::optional<ReplayFinding>& finding) {
  if (!finding) {
    return nullptr;
  }
  AnswerJson json = {{"step", finding->step}, {"row", nullptr}, {"what", finding->what}};
  if (finding->row) {
    json["row"] = *finding->row;
  }
  return json;
}

AnswerJson json_of(const ReplayReport& report, const RecordedRun& run) {
  return {{"same", report.is_same()},
          {"checked", report.did_run ? "tokens" : "schedule"},
          {"model", run.config.model},
          {"recorded_by", run.version},
          {"steps", report.num_steps},
          {"first_step", report.first_step},
          {"last_step", report.last_step},
          {"gaps", report.num_gaps},
          {"damaged_records", report.num_damaged},
          {"wrong_schedule", json_of(report.wrong_schedule)},
          {"steps_run", report.num_steps_run},
          {"requests", report.num_requests},
          {"requests_left_out", report.num_left_out},
          {"tokens_recomputed", report.num_recomputed},
          {"outputs_compared", report.num_outputs},
          {"different_requests", report.num_different},
          {"first_difference", json_of(report.first_difference)}};
}

}  // namespace

Result<ExitCode> run_replay(const Arguments& arguments) {
  CommandFrame frame(
      "replay", "run the steps of a recording again and find the first difference", "FILE [FLAGS]");
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun =
      frame.begin(arguments, {.takes_model = false, .needs_model = [] { return false; }});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (frame.more_arguments().size() != 1) {
    return fail(ErrorCode::kInvalidArgument, "replay needs one FILE, made by serve --record-steps");
  }
  const Result<StepFile> file = StepFile::open(frame.more_arguments().front());
  if (!file) {
    return tl::unexpected(file.error());
  }
  const Result<RecordedRun> run = read_description(file->description());
  if (!run) {
    return tl::unexpected(run.error());
  }
  if (file->records().empty()) {
    return fail(ErrorCode::kInvalidArgument, "the recording has no steps");
  }
  std::unique_ptr<Executor> executor;
  if (run->with_ids) {
    Result<std::unique_ptr<Executor>> loaded = load(*run, frame.loaded());
    if (!loaded) {
      return tl::unexpected(loaded.error());
    }
    executor = *std::move(loaded);
  }
  const auto num_steps =
      std::ranges::count(file->records(), StepMessage::kStep, &StepFileRecord::message);
  ProgressBar bar(num_steps, isatty(STDERR_FILENO) == 1);
  const Result<ReplayReport> report =
      replay(*file, run->facts, executor.get(), [&](int64_t done) { bar.update(done, 0); });
  bar.clear();
  if (!report) {
    return tl::unexpected(report.error());
  }
  Output out(STDOUT_FILENO);
  out.write(frame.as_json() ? json_line(json_of(*report, *run)) : text_of(*report, *run));
  out.end_line();
  return out.status().map(
      [&] { return report->is_same() ? ExitCode::kOk : ExitCode::kRequestFailed; });
}

}  // namespace warprow
